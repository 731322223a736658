# Scripts source this file before anything else. If the first argument is --help, the script prints its first comment and
# ends.
unset CDPATH # with it, cd prints the folder that it goes to
case ${1:-} in -h | --help)
    awk '/^#!/ { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' "$0"
    exit
    ;;
esac
