"""The processes that grade: no response breaks them, and no right answer is lost where they end."""

import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import hostile
import psutil
import pytest
from boxed_answers import BOXED, grade_all
from interpreter import PATIENCE, python

from cw_plugin.lab.errors import GradingError
from cw_plugin.lab.rewards import GradingPool, compute_score
from cw_plugin.lab.rewards.boxed import final_boxed
from cw_plugin.lab.rewards.pool import FIRST, shared_pool
from cw_plugin.lab.rewards.think import answer_section


def workers() -> set[psutil.Process]:
    ours = {process.pid for process in psutil.Process().children()}
    running = [process for process in psutil.process_iter(["cmdline"]) if process.pid in ours]
    return {process for process in running if "cw_plugin.lab.rewards.worker" in (process.info["cmdline"] or ())}


HANGS = "(1,2]", BOXED % "1 < x < 9^{9^{9^{9}}}"


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_no_hostile_response_scores_or_breaks_the_pool(tmp_path, monkeypatch, every):
    """What is compared as a whole (a set, a list of assignments, a decimal comma) is bounded as well."""
    monkeypatch.chdir(tmp_path)  # the workers start here, and what they write would be here
    others = len(workers())  # of the pool that other tests share
    pool = GradingPool(time_limit=0.3)
    jobs = [(hostile.GOLD, answer_section(text), "evaluation") for text in hostile.RESPONSES]
    jobs += [(gold, text, "training") for gold, text, _ in jobs if final_boxed(text) is None]
    jobs += [(gold, BOXED % answer, "evaluation") for gold, answers in hostile.LISTS.items() for answer in answers]
    chosen = jobs[::every]
    scored = [job for job, accuracy in zip(chosen, grade_all(pool, chosen), strict=True) if accuracy]
    assert scored == []
    # 3 * 10^9 digits: the memory limit stops it before the time limit does, and the worker goes on.
    assert pool.grade("(1,2]", BOXED % r"1 < x < 10^{3000000000} - 10^{3000000000} + 2 + 0 \cdot 7^{7^{12}}").stopped
    assert grade_all(pool, [(hostile.GOLD, hostile.RIGHT, "training")] * 20) == [1.0] * 20
    assert len(workers()) - others <= pool.workers
    pool.close()
    assert list(tmp_path.iterdir()) == []


def test_the_pool_of_a_time_limit_has_it():
    pool = shared_pool(0.25)
    assert pool is shared_pool(0.25) is not shared_pool()
    on_the_wall = "it took more than 2.5 s"  # where the machine is busy
    assert pool.grade(*HANGS).stopped in ("it took more than 0.25 s of CPU time", on_the_wall)
    slow = BOXED % "(xy+2x+y+2)^{10}", "(x+1)^{10}(y+2)^{10}"  # right, after 0.3 s
    accuracies = [compute_score("x", *slow, time_limit=limit)["acc"] for limit in (0.02, 2.0)]
    assert accuracies == [0.0, 1.0]


def test_a_grading_that_fails_is_said_in_the_log(caplog):
    """By the process that asked: a worker may not write to a file, which stderr is in a Ray actor."""
    assert shared_pool().grade("27", "no box", "another extraction").accuracy == 0.0
    assert "Grading 'no box' against the ground truth '27' failed, so it counts as wrong" in caplog.text
    assert "KeyError: 'another extraction'" in caplog.text
    caplog.clear()
    assert shared_pool().grade("27", "no box").accuracy == 0.0
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("end", "code", "is_tried_again"), [("exit 0", 0, False), ("exit 1", 1, False), ("kill -9 $$", -9, True)]
)
def test_where_no_grading_process_starts_no_answer_is_wrong(end, code, is_tried_again, tmp_path, monkeypatch):
    """One that was killed is started again until the time is over, since memory may have been short for a moment."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho >>{tmp_path}/starts\n{end}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(GradingError, match=rf"no grading process starts \(exit code {code}\); .* has math-verify"):
        GradingPool(time_limit=0.1, workers=1).grade("7", BOXED % 7)
    assert (len((tmp_path / "starts").read_text()) > 1) == is_tried_again


@pytest.mark.parametrize(
    ("instead", "time_limit", "field"),
    [("os._exit(3)", 0.1, "failure"), ("sum(range(10**12))", 1.0, "stopped")],  # a loop in C, which no exception ends
)
def test_an_answer_that_ends_its_process_counts_as_wrong(instead, time_limit, field, tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "from cw_plugin.lab.rewards import grading, worker\n"
        "right = grading.grade\n"
        f"grading.grade = lambda gold, *given: right(gold, *given) if gold == {FIRST.ground_truth!r} else {instead}\n"
        "del sys.argv[1:3]  # of python -m\n"
        "worker.main()\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    grade = GradingPool(time_limit, workers=1).grade("7", BOXED % 7)
    assert grade.accuracy == 0.0 and getattr(grade, field)


def test_a_grader_that_fails_on_everything_is_found_at_the_start(monkeypatch):
    monkeypatch.setattr("cw_plugin.lab.rewards.pool.FIRST", FIRST._replace(extraction="another version"))
    with pytest.raises(GradingError, match=r"finds .*boxed\{2\} wrong for 2 \(KeyError: 'another version'\); install"):
        GradingPool(workers=1).grade("7", BOXED % 7)


def test_no_right_answer_is_lost_to_killed_workers():
    """Workers are killed while they start, wait and grade, one after another."""
    pool = GradingPool(workers=2)
    before = workers()

    def grade(number: int) -> float:
        return pool.grade(str(number), BOXED % f"{number}.0").accuracy

    with ThreadPoolExecutor(4) as threads:
        assert grade(0) == 1.0
        graded = [threads.submit(grade, number) for number in range(2000)]
        for _ in range(3):
            time.sleep(0.3)
            assert not all(future.done() for future in graded)  # so that these kills meet some
            for process in workers() - before:
                process.kill()
        assert [future.result() for future in graded] == [1.0] * 2000
    pool.close()
    assert workers() == before


def test_an_answer_that_waited_for_long_survives_a_killed_worker():
    pool = GradingPool(time_limit=0.5, workers=1)
    assert pool.grade("1", BOXED % 1).accuracy == 1.0
    worker = pool._idle.get()
    with ThreadPoolExecutor(1) as threads:
        graded = threads.submit(pool.grade, "2", BOXED % 2)
        time.sleep(6)  # more than the wall-clock limit
        worker.process.kill()
        pool._idle.put(worker)
        assert graded.result().accuracy == 1.0
    pool.close()


def test_no_worker_outlives_a_killed_parent():
    code = (
        "import os, psutil, threading, time\n"
        "from cw_plugin.lab.rewards import compute_score\n"
        "assert compute_score('x', r'\\boxed{5}', '5')['acc'] == 1.0\n"
        f"hang = lambda: compute_score('x', r'{HANGS[1]}', '{HANGS[0]}')\n"
        "threading.Thread(target=hang).start(); time.sleep(0.5)\n"
        "print(*(child.pid for child in psutil.Process().children()), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    process = python("-c", code)
    assert process.returncode == -signal.SIGKILL and process.stdout.strip(), process.stderr
    started = []
    for pid in process.stdout.split():
        with suppress(psutil.NoSuchProcess):
            started.append(psutil.Process(int(pid)))
    assert psutil.wait_procs(started, timeout=PATIENCE)[1] == []


def test_a_forked_process_grades():
    """Where a job may have less memory than a worker would take, too."""
    code = """if True:
        import os, resource, signal, sys
        resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))
        from cw_plugin.lab.rewards import compute_score
        from cw_plugin.lab.rewards.pool import shared_pool

        right = lambda: compute_score("x", r"\\boxed{5}", "5")["acc"] == 1.0
        assert right()
        pool = shared_pool()
        taken = [pool._idle.get() for _ in range(pool.workers)]  # by threads that grade, which a fork has not
        child = os.fork()
        signal.alarm(60)
        for worker in taken if child else []:
            pool._idle.put(worker)
        assert right()
        if child == 0:
            print("child", flush=True)
            sys.exit()  # with the handlers at exit, which must leave the parent's workers alone
        assert os.waitpid(child, 0)[1] == 0
        assert right()
        print("parent", flush=True)
    """
    # Python 3.12 warns of a fork in a process with threads, which is what is tested.
    process = python("-W", "ignore::DeprecationWarning", "-c", code)
    assert (process.returncode, process.stdout, process.stderr) == (0, "child\nparent\n", "")
