# Every script that trains sources this file first. The script then replaces itself with launcher/supervise.py, which keeps
# the process id and starts the script again below it. When the process ends, by SIGTERM, Ctrl-C or kill -9, everything
# that the script has started ends too, Ray's daemons included. If the script starts another such script, that one is not
# supervised separately.
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
if [ -z "${CW_PLUGIN_SCRIPT:-}" ]; then
    # Any Python 3.8; without one, the script itself says what it needs.
    supervisor=$(command -v "${PYTHON:-python3}" || command -v python3.11 || true)
    [ -z "$supervisor" ] || exec "$supervisor" -I -S "$(dirname "${BASH_SOURCE[0]}")/launcher/supervise.py" "$BASH" "$0" "$@"
fi
