"""A program: run one command, and end all its processes when the process that started this program has ended.

    python run_guarded.py      standard input: the command, as a line of JSON; it closes when the starter ends

supervise.py starts it, once for a script, and may be killed by `kill -9`. Processes that detach themselves, as Ray's
daemons do, stay below this one: it adopts orphans. It has its own session, and a command line without the command, so
that neither a terminal's signals nor `pkill -f main_ppo` end it. If it is killed all the same, Linux kills the command,
and supervise.py ends the rest.

Its exit code is the command's, or 128 + N if the signal N ended the command.
"""

import json
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # which python -I leaves out
from processes import LINGER, adopt_orphans, descendants, end_descendants, end_with_parent


def main() -> int:
    """Run the command that standard input names, and return its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the command would inherit SIG_IGN
    adopt_orphans()
    words = json.loads(sys.stdin.readline())
    try:
        command = subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)
    except OSError as error:
        print(f"{words[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127
    ended = None
    while not select.select([sys.stdin], [], [], 0.2)[0]:  # the starter has not gone: it writes nothing more
        if command.poll() is not None:
            ended = ended or time.monotonic()
            if not descendants() or time.monotonic() > ended + LINGER:
                break
    end_descendants()
    code = command.returncode
    if code is None:  # the starter has gone before it
        return 1
    if code < 0:  # a signal ended it, which shells show as 128 + its number
        return 128 - code
    return code


if __name__ == "__main__":
    sys.exit(main())
