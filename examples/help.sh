# Scripts source this file. If the first argument is --help, the script prints its first comment and ends.
case ${1:-} in -h | --help)
    awk '/^#!/ { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' "$0"
    exit
    ;;
esac
