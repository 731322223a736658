# claim FOLDER: lock a run's folder, until this script and what it starts have ended. A folder that another run has, or
# that cannot be written, is refused. verl's scripts leave that to launch.py. It needs the environment that trains.
claim() {
    local error
    error=$({ mkdir -p "$1" && touch "$1/.lock"; } 2>&1) || {
        echo "$error: name another folder (RUN=... or OUT=...)" >&2
        exit 2
    }
    exec 9<>"$1/.lock" # what this starts holds it, too
    python3 -m cw_plugin.folder_lock "$1" 9
    export CW_PLUGIN_FOLDER=$1 # trl/train.py, which claims its folder, has it by this
}
