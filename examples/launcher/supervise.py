"""A program: run a script. When this process ends, for whatever reason, everything that the script has started ends.

    python supervise.py COMMAND...

supervised.sh has a script replace itself with this process, which so has the script's process id; launch.py does the
same if no script has started it. The command runs below run_guarded.py, in a session of its own, and reads nothing.
This needs Python's standard library alone.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while this starts

import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from contextlib import suppress  # noqa: E402
from pathlib import Path  # noqa: E402

HERE = Path(__file__).resolve().parent
os.environ["CW_PLUGIN_SCRIPT"] = str(os.getpid())  # supervised.sh, launch.py and folder_lock.py read it
if sys.version_info < (3, 8):  # noqa: UP036 - the script itself says which Python it needs
    os.execvp(sys.argv[1], sys.argv[1:])

sys.path.insert(0, str(HERE))  # which python -I leaves out
from processes import Stopped, ending_descendants  # noqa: E402


def main() -> int:
    """Run the command of this process's arguments, and return its exit code."""
    try:
        with ending_descendants():  # whatever a guard that was killed has left
            return run_guarded(sys.argv[1:])
    except Stopped as stopped:
        stopped.end()


def run_guarded(command: list) -> int:
    """Run a command below run_guarded.py, and return its exit code."""
    program = [sys.executable, "-I", "-S", str(HERE / "run_guarded.py")]
    guard = subprocess.Popen(program, stdin=subprocess.PIPE, start_new_session=True)
    assert guard.stdin is not None
    try:
        with suppress(BrokenPipeError):  # killed already
            guard.stdin.write(json.dumps(command).encode() + b"\n")
            guard.stdin.flush()
        code = guard.wait()
    finally:
        guard.stdin.close()  # which tells the guard
        guard.wait()
    if code < 0:
        print("run_guarded.py was killed, and with it what it ran", file=sys.stderr)
        return 128 - code
    return code


if __name__ == "__main__":
    sys.exit(main())
