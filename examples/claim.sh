# claim FOLDER: lock a run's folder until this script and everything that it starts have ended. It refuses a folder that
# another run has locked, or that cannot be written. verl's scripts leave this to launch.py. Call it in the environment
# that trains.
claim() {
    local error
    error=$({ mkdir -p "$1" && touch "$1/.lock"; } 2>&1) || {
        echo "$error: name another folder (RUN=... or OUT=...)" >&2
        exit 2
    }
    exec 9<>"$1/.lock" # everything that this script starts holds the lock, too
    python3 "$(dirname "${BASH_SOURCE[0]}")/launcher/folder_lock.py" "$1" 9
    export CW_PLUGIN_FOLDER=$1 # trl/train.py, which claims its folder, has it by this
}
