"""Run a script. When this process ends, for whatever reason, everything that the script has started ends.

    python supervise.py SCRIPT...

supervised.sh has a script replace itself with this process, which so has the script's process id. It needs Python's
standard library alone.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while this starts

import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

if sys.version_info < (3, 8):  # noqa: UP036 - the script itself says which Python it needs
    os.environ["CW_PLUGIN_SCRIPT"] = str(os.getpid())
    os.execvp(sys.argv[1], sys.argv[1:])

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from cw_plugin.guarded_processes import Stopped, guarded  # noqa: E402


def main() -> int:
    os.environ["CW_PLUGIN_SCRIPT"] = str(os.getpid())  # supervised.sh and folder_lock.py read it
    try:
        with guarded(sys.argv[1:]) as script:
            return script.wait()
    except Stopped as stopped:
        stopped.end()


if __name__ == "__main__":
    sys.exit(main())
