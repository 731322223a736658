# With --help as its first word, a script prints its first comment, and ends. Other scripts source this.
case ${1:-} in -h | --help)
    awk '/^#!/ { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' "$0"
    exit
    ;;
esac
