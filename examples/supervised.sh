# Every script that trains sources this first. The script then replaces itself with launcher/supervise.py, which keeps its
# process id and runs it anew. When that process ends, by SIGTERM, Ctrl-C or kill -9, everything that the script has
# started ends, Ray's daemons included. A script that such a script starts belongs to it.
#
# Until then no process is started, not even dirname: bash can miss a Ctrl-C while it waits for "$(dirname ...)", and was
# seen to wait for ever after one. Python, too, can miss it while it starts; a second Ctrl-C ends both.
source "${BASH_SOURCE[0]%/*}/help.sh"
if [ -z "${CW_PLUGIN_SCRIPT:-}" ]; then
    # Any Python 3.8; without one, the script itself says what it needs.
    for supervisor in "${PYTHON:-python3}" python3.11; do
        if command -v "$supervisor" >/dev/null; then
            exec "$supervisor" -I -S "${BASH_SOURCE[0]%/*}/launcher/supervise.py" "$BASH" "$0" "$@"
        fi
    done
fi
