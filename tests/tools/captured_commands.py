"""Runs the scripts of a framework's examples, and keeps the commands that they would have started.

A script runs in a copy of the examples, with a home folder that is thrown away. Its PATH has the programs of ``_REAL``,
which only read, and stand-ins: those of ``_KEPT`` write their arguments and environment to a file, and what is not
there does nothing and succeeds, such as rm, pip, curl and git. For root, scripts run as the user nobody.
"""

import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SECONDS = 60  # for a script
_NOBODY = 65534
_REAL = """
    bash basename cat cut date dirname env expr false grep head hostname id ls mktemp nohup nproc printf pwd readlink
    realpath sed seq sort tail timeout tr true uname uniq wc whoami
"""
_KEPT = "python python3 torchrun accelerate deepspeed ray uv trl swift megatron axolotl openrlhf"
# What a package is asked by -c is not there. What ray gets after -- runs, too, because it may be a script.
_STAND_IN = """\
#!{bash}
case "$1" in -c) exit 1 ;; -) exit 0 ;; esac
if [ "${{0##*/}}" = ray ]; then
    for word; do shift; [ "$word" = -- ] && exec "$@"; done
    exit 0
fi
{{ printf '%s\\0' "$PWD" "$#" "${{0##*/}}" "$@"; env -0; printf 'end\\0'; }} > "$(mktemp "{calls}/XXXXXXXX")"
"""
_FUNCTIONS = """\
command_not_found_handle() { :; }
ulimit() { :; }
source() { if [ -f "$1" ]; then builtin source "$@"; fi; }
mkdir() { for word; do case "$word" in -*) ;; *) command mkdir -p "$word" 2> /dev/null ;; esac; done; return 0; }
tee() { cat; }
sed() { case " $* " in *" -i"*) ;; *) command sed "$@" ;; esac; }
"""


# What bash says if a variable is not set, of ``set -u`` and of ``${NAME:?text}``.
_MISSING = r"^{script}: line \d+: (\w+): "


@dataclass(frozen=True)
class Command:
    """A command that a script starts."""

    script: Path  # within the examples
    words: tuple[str, ...]  # the program and its arguments
    folder: Path  # where it starts
    environment: Mapping[str, str]  # all of it


@contextmanager
def captured(examples: Path, scripts: Iterable[Path]) -> Iterator[dict[Path, list[Command]]]:
    """The commands of each script (a path within the examples), whose folders are there until the block ends."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:  # which nobody can enter
        place = Path(folder)
        place.chmod(0o755)
        shutil.copytree(examples, place / "copy", symlinks=True, ignore=shutil.ignore_patterns(".git"))
        for name in ("bin", "home", "calls"):
            (place / name).mkdir()
            (place / name).chmod(0o777)
        for name in (*_REAL.split(), "mkdir"):
            (place / "bin" / name).symlink_to(shutil.which(name) or "/bin/true")
        for name in _KEPT.split():
            file = place / "bin" / name
            file.write_text(_STAND_IN.format(bash=shutil.which("bash"), calls=place / "calls"))
            file.chmod(0o755)
        (place / "functions.sh").write_text(_FUNCTIONS)
        for path in (place / "copy", *(place / "copy").rglob("*/")):
            path.chmod(0o777)  # scripts make folders for logs there
        (place / "bin").chmod(0o755)
        yield {script: _commands(place, script) for script in scripts}


def _commands(place: Path, script: Path) -> list[Command]:
    """Those of one script. A variable that it must have, as it says, is its own name."""
    environment = {"PATH": str(place / "bin"), "HOME": str(place / "home"), "TMPDIR": str(place / "home")}
    environment |= {"BASH_ENV": str(place / "functions.sh"), "USER": "user", "LC_ALL": "C"}
    if script.suffix in (".md", ".qmd", ".yaml", ".yml"):
        names = _configurations(place / "copy", script)
        return [Command(script, ("axolotl", "train", name), place / "copy", environment) for name in names]
    if script.suffix != ".sh":  # a program of Python, or a notebook, is what a user starts
        return [Command(script, ("python", str(script)), place / "copy", environment)]
    while True:
        printed = _run(place, script, environment)
        calls = sorted((place / "calls").iterdir(), key=lambda file: file.stat().st_mtime_ns)
        texts = [file.read_text(errors="replace") for file in calls]
        commands = [_command(script, text) for text in texts if text.endswith("\0end\0")]  # none that was killed
        for file in calls:
            file.unlink()
        missing = re.search(_MISSING.format(script=re.escape(str(script))), printed, re.MULTILINE)
        if commands or not missing or missing[1] in environment:
            return commands
        environment[missing[1]] = missing[1].lower()


def _configurations(examples: Path, script: Path) -> list[str]:
    """A file of YAML, or a file for each block of it on a page."""
    if script.suffix in (".yaml", ".yml"):
        return [str(script)]
    blocks = re.findall(r"^```yaml\n(.*?)^```$", (examples / script).read_text(), re.MULTILINE | re.DOTALL)
    names = [f"{script}.{number}.yaml" for number in range(len(blocks))]
    for name, block in zip(names, blocks, strict=True):
        (examples / name).write_text(block)
    return names


def _run(place: Path, script: Path, environment: Mapping[str, str]) -> str:
    """What a script prints, when it and all that it put into the background has ended."""
    reader, writer = os.pipe()  # every process of the script has the writer, until it ends
    process = subprocess.Popen(
        [place / "bin" / "bash", script],
        cwd=place / "copy",
        env=environment,
        user=_NOBODY if os.geteuid() == 0 else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=[writer],
        start_new_session=True,
    )
    os.close(writer)
    try:
        printed = process.communicate(timeout=SECONDS)[0]
        select.select([reader], [], [], SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        printed = process.communicate()[0]
    os.close(reader)
    return printed


def _command(script: Path, call: str) -> Command:
    folder, count, *rest = call.removesuffix("\0end\0").split("\0")
    end = 1 + int(count)
    environment = dict(line.split("=", 1) for line in rest[end:] if "=" in line)
    return Command(script, tuple(rest[:end]), Path(folder), environment)
