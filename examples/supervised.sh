# Every script that trains sources this file first. The script then replaces itself with launcher/supervise.py, which keeps
# the process id and starts the script again below it. When the process ends, by SIGTERM, Ctrl-C or kill -9, everything
# that the script has started ends too, Ray's daemons included. If the script starts another such script, that one is not
# supervised separately.
#
# Until then, no process is started, not even dirname: bash can miss a Ctrl-C while it waits for "$(dirname ...)", and then
# it may wait for ever. Python can also miss one while it starts. A second Ctrl-C ends both.
source "${BASH_SOURCE[0]%/*}/help.sh"
if [ -z "${CW_PLUGIN_SCRIPT:-}" ]; then
    # Any Python 3.8; without one, the script itself says what it needs.
    for supervisor in "${PYTHON:-python3}" python3.11; do
        if command -v "$supervisor" >/dev/null; then
            exec "$supervisor" -I -S "${BASH_SOURCE[0]%/*}/launcher/supervise.py" "$BASH" "$0" "$@"
        fi
    done
fi
