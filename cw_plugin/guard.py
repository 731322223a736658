"""Runs one command, and ends all of its processes when the process that started this has ended, `kill -9` included.

guarded_processes.guarded starts it. The command is a line of JSON on standard input, which closes when the starter
ends. Processes that detach themselves, as Ray's daemons do, stay children of this one: it adopts orphans. It has its
own session, and a command line without the command, so that neither a terminal's signals nor `pkill -f main_ppo` end
it. If it is killed all the same, Linux kills the command, and the starter adopts and ends the rest.
"""

import json
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script's Python has no cw_plugin installed
from cw_plugin.guarded_processes import adopt_orphans, descendants, end_descendants, end_with_parent

LINGER = 10  # seconds that are left to what a command that has ended itself started, W&B's upload for one


def main() -> int:
    """Run the command that standard input names, and return its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the command would inherit SIG_IGN
    adopt_orphans()
    words = json.loads(sys.stdin.readline())
    try:  # close_fds=False: the command holds the lock of a run's folder, too
        command = subprocess.Popen(words, stdin=subprocess.DEVNULL, close_fds=False, preexec_fn=end_with_parent)
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
