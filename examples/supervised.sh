# Every script that trains sources this first. The script then replaces itself with launcher/supervise.py, which keeps its
# process id and runs it anew. When that process ends, by SIGTERM, Ctrl-C or kill -9, everything that the script has
# started ends, Ray's daemons included. A script that such a script starts belongs to it.
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
if [ -z "${CW_PLUGIN_SCRIPT:-}" ]; then
    # Any Python 3.8; without one, the script itself says what it needs.
    supervisor=$(command -v "${PYTHON:-python3}" || command -v python3.11 || true)
    [ -z "$supervisor" ] || exec "$supervisor" -I -S "$(dirname "${BASH_SOURCE[0]}")/launcher/supervise.py" "$BASH" "$0" "$@"
fi
