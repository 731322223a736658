# The kernel for METHOD=cw_grpo|grpo, the only difference between the paper's rows; for the scripts of trl/, openrlhf/ and skyrl/.
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
METHOD=${METHOD:-cw_grpo}
case $METHOD in
    cw_grpo) kernel=gaussian ;;
    grpo) kernel=none ;; # the framework's own advantages bit for bit, with the same metrics and records
    *)
        echo "METHOD=$METHOD is unknown; use cw_grpo or grpo" >&2
        exit 2
        ;;
esac
