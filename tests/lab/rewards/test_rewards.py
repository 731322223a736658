"""The reward: what it gives, and that no response can break it."""

import itertools
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import answer_classes
import hostile
import numpy as np
import psutil
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import ROOT, python
from transformers import PreTrainedTokenizerFast

from cw_plugin.errors import OptionsError
from cw_plugin.lab.errors import DataError, GradingError
from cw_plugin.lab.rewards import GradingPool, compute_score, grading, ground_truth_problem
from cw_plugin.lab.rewards.boxed import final_boxed, number_text
from cw_plugin.lab.rewards.pool import FIRST, shared_pool
from cw_plugin.lab.rewards.rewrites import REWRITES, rewritten
from cw_plugin.lab.rewards.think import answer_section, matched

COPIES = Path(os.environ.get("CW_GRPO_DATA", ROOT.parent / "shared" / "data"))
BOXED = r"<think>so</think> The answer is $\boxed{%s}$."


def accuracies(gold: object, text: str) -> tuple[float, ...]:
    """As open-rs grades in training and in evaluation."""
    return tuple(compute_score("x", text, gold, extraction=how)["acc"] for how in ("training", "evaluation"))


def test_numbers_are_ground_truths_too():
    for gold, answer in [
        (42, "42"), (42.0, "42"), (10, "10"), (100.0, "100"),
        (-0.5, r"-\frac{1}{2}"), (1e-07, "10^{-7}"), (6.02e23, r"6.02 \times 10^{23}"),
        (np.int64(42), "42"), (np.float32(0.1), "0.1"), (Decimal("12.50"), "12.5"),
    ]:  # fmt: skip
        assert accuracies(gold, BOXED % answer) == (1.0, 1.0)
    assert accuracies(42.0, BOXED % "43") == (0.0, 0.0)


@pytest.mark.parametrize("kind", answer_classes.EQUAL | answer_classes.UNEQUAL)
def test_a_mathematician_would_agree(kind):
    cases = [case[1:] for case in answer_classes.cases() if case[0] == kind]
    assert [case for case in cases if accuracies(case[0], case[1]) != (case[2], case[2])] == []


@pytest.mark.parametrize("place", range(len(REWRITES)), ids=lambda place: REWRITES[place].name)
def test_each_rewrite_changes_the_verdict_of_its_example(place, monkeypatch):
    rewrite = REWRITES[place]
    verdicts = []
    for kept in (REWRITES, REWRITES[:place] + REWRITES[place + 1 :]):
        monkeypatch.setattr("cw_plugin.lab.rewards.rewrites.REWRITES", kept)
        grading.read.cache_clear()
        grading._is_right.cache_clear()
        accuracy, _ = grading.grade(rewrite.ground_truth, BOXED % rewrite.answer, "evaluation")
        verdicts.append(accuracy)
    grading.read.cache_clear()
    grading._is_right.cache_clear()
    assert verdicts == [float(rewrite.right), float(not rewrite.right)]


def test_answers_in_sentences():
    for gold, text, right in [
        ("2", "The answer is 2\u221a3.", 0.0),
        (r"2\sqrt{13}", "The answer is 2\u221a13.", 1.0),
        ("60", "The angle is 60\u00b0.", 1.0),
        ("5", "The answer is 5\u4e07.", 0.0),
        ("5", "The answer is 5 million.", 0.0),
        ("5", "\u7b54\u6848\u662f5\u3002", 1.0),
        ("-5", "\u7b54\u6848\uff1a-5", 1.0),
        ("12", "\u6240\u4ee5\u4e00\u5171\u670912\u5143\u3002", 1.0),
        ("0.5", "<answer>The answer is 1/2.</answer>", 1.0),
        ("5", r"\boxed{5} <answer>The answer is 6.</answer>", 0.0),
    ]:
        assert compute_score("x", text, gold)["acc"] == right, (gold, text)


EXPRESSIONS = st.sampled_from(
    ["7", "-3", "12345", "0.25", r"\frac{3}{8}", r"2\sqrt{13}", r"\frac{3\pi}{4}", "(3, -7)", r"\{2, 5\}", "3, 8",
     "x^2+3x", r"(-\infty, 3]", r"\ln 2", "e^{2x}", r"\text{east}", "5 people", r"20\text{ days}", r"28\%", "101_2",
     "y = 3x + 1"]
)  # fmt: skip


@settings(max_examples=60)
@given(gold=EXPRESSIONS, other=EXPRESSIONS, extra=st.sampled_from(["7", "-", "k", "+ 1", "!"]), first=st.booleans())
def test_an_answer_equals_itself_and_nothing_more(gold, other, extra, first):
    assert accuracies(gold, BOXED % gold) == accuracies(gold, BOXED % rewritten(gold)) == (1.0, 1.0)
    assert accuracies(gold, BOXED % other) == 2 * (float(gold == other),)
    longer = f"{extra}{gold}" if first and extra in "7-k" else f"{gold}{extra}"
    if (gold, longer) not in {(r"\{2, 5\}", r"k\{2, 5\}")}:
        assert accuracies(gold, BOXED % longer) == (0.0, 0.0), (gold, longer)


def test_numbers_are_rounded_as_in_open_rs_and_never_by_more_than_a_thousandth():
    for gold, answer, training, evaluation in [
        ("0.1234561", "0.1234564", 1.0, 1.0),  # 6 decimals
        ("0.123456", "0.123459", 0.0, 1.0),  # 5 decimals
        ("0.12346", "0.12347", 0.0, 0.0),
        ("0.0100049", "0.010003", 0.0, 1.0),  # 0.01000 both, and 0.2 thousandths apart
        ("0.0010049", "0.001003", 0.0, 0.0),  # 0.00100 both, but 1.9 thousandths apart
    ]:
        assert accuracies(gold, BOXED % answer) == (training, evaluation), (gold, answer)


def test_extraction_follows_open_rs():
    for gold, text, training, evaluation in [
        ("27", r"The final answer is $27$.", 1.0, 1.0),  # LaTeX after the words that open-rs looks for
        ("27", "The final answer is 27.", 0.0, 1.0),  # a plain number is for lighteval only
        ("27", "So it is $27$ then", 0.0, 1.0),
        ("27", r"\boxed{27}, and not $28$", 1.0, 1.0),  # the box comes first
        ("27", r"\boxed{28}, and not $27$", 0.0, 0.0),
        ("27", r"\boxed{28}? No. So it is \boxed{27}", 1.0, 1.0),  # the last of several
        ("27", r"\boxed{27}? No. So it is \boxed{28}", 0.0, 0.0),
        ("27", r"$\boxed{27}$ and $\boxed{28}$", 0.0, 0.0),  # a list is one answer
        ("27", r"<think>a</think>\boxed{27}</think> I do not know", 0.0, 0.0),
        ("27", r"<think>\boxed{27}</think> I give up", 0.0, 0.0),  # boxed while thinking is a draft
        ("27", r"still thinking, \boxed{27} perhaps", 1.0, 1.0),  # never closed: as open-rs and lighteval, all counts
        ("27", r"The final answer is $\frac{27}{$.", 0.0, 0.0),  # no other number takes its place
        ("1e-8", "The final answer is $1e-8$.", 1.0, 1.0),  # read as in a box
        ("27", "The final answer is $26 + 1$.", 0.0, 1.0),
        ("27", r"\boxed{27} no, \boxed{28", 0.0, 0.0),  # given up, and cut off
        ("5050", r"The final answer is $\sum_{k=1}^{100} k$.", 0.0, 0.0),  # that restates the question
        ("50%", "So it is 50% then", 0.0, 1.0),
        ("0.5", "So it is 50% then", 0.0, 1.0),
        ("(2,32), (8,18)", "The final answer is $(x, y)=(2,32)$ or $(x, y)=(8,18)$.", 1.0, 1.0),
    ]:
        assert accuracies(gold, text) == (training, evaluation), text
    filler = "and so on, " * 30_000  # more than a worker gets, and far more than is searched for a number
    for text, right in [
        (rf"\boxed{{28}} {filler} \boxed{{27}}", 1.0),
        (rf"\boxed{{27}} {filler} \boxed{{28}}", 0.0),
        (f"The final answer is $28$. {filler} The final answer is $27$.", 1.0),
        (f"The final answer is $27$. {filler}", 0.0),
    ]:
        assert accuracies("27", text) == (right, right), (text[:30], right)
    plain = "The final answer is 27."  # by default, the data source says which
    assert compute_score("knoveleng/open-rs", plain, "27")["acc"] == 0.0
    assert compute_score("HuggingFaceH4/aime_2024", plain, "27")["acc"] == 1.0


REFUSED = [
    (None, "is empty (None)"),
    ("", "is empty ('')"),
    (True, "True (bool)"),
    (b"42", "b'42' (bytes)"),
    (float("nan"), "nan (float)"),
    (np.float32("inf"), "must be text or a finite number"),
    (["42"], "is a list, ['42']; write it as one text"),
    ({"a": 1}, "is a dict"),
]


def test_what_is_wrong_with_a_ground_truth():
    for value, why in REFUSED:
        with pytest.raises(DataError, match="data_source is 'some/data'") as error:
            compute_score("some/data", BOXED % "42", value)
        assert why in str(error.value)
        assert why in ground_truth_problem(value) == ground_truth_problem(value, parse=False)
    assert [ground_truth_problem(value) for value in ("27", 27.0, r"\frac{1}{2}", "50%", "101_2")] == [None] * 5
    for text, why in [
        ("t(0,4]", "cannot be read by math-verify"),
        ("nan", "there is no answer"),
        ("None", "there is no answer"),
        ("sinc(x) + 1", "the word sinc"),
        (r"y^{\prime} + 2y", "the name of a variable"),
        (r"a+b \approx c", "the letter a, which math-verify leaves out"),
    ]:
        assert why in ground_truth_problem(text), text
    for text in ("e^{2 i t}", r"\text{east}", "E_{1},E_{2}", r"\int_0^1 f(x) dx", r"\frac{dy}{dx} = 3"):
        assert ground_truth_problem(text) is None, text
    slow = ground_truth_problem(hostile.HANGING[0])  # where the machine is busy, reading it may take too long
    assert slow is None or "more than 2 s of CPU time" in slow


def test_an_error_that_verl_swallows_is_said_once(capsys, monkeypatch):
    """verl's agent loop logs what a reward raises in a worker's log, marks the prompt as failed, and goes on."""
    monkeypatch.setitem(sys.modules, "verl", sys)
    monkeypatch.setattr("cw_plugin.lab.rewards._said", set())
    for _ in range(3):
        with pytest.raises(DataError):
            compute_score("x", "5", None)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("cw_plugin: the reward failed")
    assert "is empty (None)" in said and "data_source is 'x'" in said


def test_format():
    for response, opened, not_opened in [  # matched if the template opened <think>, and if it did not
        ("so\n</think>\n5", 1, 0),
        ("  <think>so</think>", 0, 1),
        ("5", 0, 0),
        ("<think>so", 0, 0),
        ("a</think>b</think>c", 0, 0),
        ("<think>a<think>b\n</think>\nc", 0, 0),
        ("hm <think>a\n</think>\nc", 0, 0),
        ("</think><think>", 0, 0),
    ]:
        assert (matched(response, True), matched(response, False)) == (opened, not_opened)
        assert matched(response, None) == max(opened, not_opened)


@pytest.mark.parametrize(("ending", "opens"), [("<think>\n", True), ("", False)])
def test_the_chat_template_settles_who_opens(tmp_path, ending, opens):
    vocabulary = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, unk_token="<unk>")
    generation = "{% if add_generation_prompt %}<assistant>" + ending + "{% endif %}"
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}" + generation
    tokenizer.save_pretrained(tmp_path)
    responses = "<think>a</think>", "a</think>"
    formats = [compute_score("x", response, "5", model_path=str(tmp_path))["format"] for response in responses]
    assert formats == ([0.0, 1.0] if opens else [1.0, 0.0])


def test_score_is_the_weighted_sum_and_the_keys_never_change():
    for response, acc, fmt, pred in [
        (BOXED % "27", 1.0, 1.0, "27"),
        (r"\boxed{27}", 1.0, 0.0, "27"),
        ("<think>so</think> no idea", 0.0, 1.0, ""),
        (None, 0.0, 0.0, ""),
    ]:
        result = compute_score("x", response, "27", accuracy_weight=2.0, format_weight=0.5)
        assert result == {"score": 2.0 * acc + 0.5 * fmt, "acc": acc, "format": fmt, "pred": pred}
        assert [type(value) for value in result.values()] == [float, float, float, str]

    for option in ("extraction", "time_limit"):
        with pytest.raises(OptionsError, match=option):
            compute_score("x", "5", "5", **{option: 0})


def test_boxes():
    assert final_boxed(r"\boxed{1} is half of it. We get \boxed{\frac{1}{2}}.") == r"\frac{1}{2}"
    assert final_boxed(r"\boxed{\{1, 2\}}") == r"\{1, 2\}"
    assert final_boxed(r"\fbox {7}") == "7"
    assert final_boxed(r"\boxed{a \boxed{5}}") == "5"
    assert final_boxed(r"\boxed{5} and \boxed{6") == final_boxed(r"\boxed{6") == ""
    assert final_boxed(r"{ \boxed{5}") == "5"
    assert final_boxed(r"\frac{1}{\boxed{3}}") == "3"
    assert final_boxed("no box") is None
    assert final_boxed(r"\boxed{1}, \boxed{234}") == "1, 234"  # not the number 1,234
    assert final_boxed(r"\boxed{1}" + r" \quad" * 14 + r"\boxed{2}") == "1, 2"  # however much space is between
    assert final_boxed(r"\boxed{5} and \boxed") == ""  # cut off
    assert final_boxed(r"first $\boxed{5}$. So $\boxed{6}$") == "6"  # no list: a sentence ends between them
    assert final_boxed(r"first \boxed{1}. Now come $\boxed{2}$, $\boxed{3}$ and $\boxed{4}$") == "2, 3, 4"
    assert [number_text(value) for value in (10, 100.0, 1e-7, True, None)] == ["10", "100", "1e-07", None, None]


def grade_all(pool: GradingPool, jobs: list[tuple[str, str, str]]) -> list[float]:
    with ThreadPoolExecutor(4 * pool.workers) as threads:
        return list(threads.map(lambda job: pool.grade(*job).accuracy, jobs))


def workers() -> set[psutil.Process]:
    ours = {process.pid for process in psutil.Process().children()}
    running = [process for process in psutil.process_iter(["cmdline"]) if process.pid in ours]
    return {process for process in running if "cw_plugin.lab.rewards.worker" in (process.info["cmdline"] or ())}


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
    assert pool.grade(hostile.GOLD, BOXED % r"10^{3000000000} - 10^{3000000000} + 7919 + 0 \cdot 7^{7^{12}}").stopped
    assert grade_all(pool, [(hostile.GOLD, hostile.RIGHT, "training")] * 20) == [1.0] * 20
    assert len(workers()) - others <= pool.workers
    pool.close()
    assert list(tmp_path.iterdir()) == []


def test_a_grading_that_fails_is_said_in_the_log(caplog):
    """By the process that asked: a worker may not write to a file, which stderr is in a Ray actor."""
    assert shared_pool().grade("27", "no box", "another extraction").accuracy == 0.0
    assert "counts as wrong" in caplog.text and "KeyError: 'another extraction'" in caplog.text
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
        "hang = lambda: compute_score('x', r'\\boxed{9^{9^{9^{9}}}}', '5')\n"
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
    assert psutil.wait_procs(started, timeout=60)[1] == []


def test_a_forked_process_grades():
    code = """if True:
        import os, sys
        from cw_plugin.lab.rewards import compute_score

        right = lambda: compute_score("x", r"\\boxed{5}", "5")["acc"] == 1.0
        assert right()
        child = os.fork()
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


@pytest.mark.slow
@pytest.mark.skipif(not COPIES.is_dir(), reason="needs local copies of the benchmarks, see README")
def test_the_golds_of_the_benchmarks():
    """Each gold equals itself in a response, and none is earned by the next row's different gold."""
    golds = answer_classes.benchmark_answers(COPIES)
    assert len(golds) == 1517
    graded = grade_all(shared_pool(), [(gold, BOXED % gold, "evaluation") for _, _, gold in golds])
    assert [gold for gold, acc in zip(golds, graded, strict=True) if acc == 0.0] == []

    pairs = [(a, b) for a, b in itertools.pairwise(golds) if a[0] == b[0] and rewritten(a[2]) != rewritten(b[2])]
    graded = grade_all(shared_pool(), [(gold, BOXED % other[2], "evaluation") for (_, _, gold), other in pairs])
    earned = [(a[0], a[1], a[2], b[2]) for (a, b), acc in zip(pairs, graded, strict=True) if acc == 1.0]
    assert earned == [("math500", 22, "5", "x=5")]  # which is the same answer
