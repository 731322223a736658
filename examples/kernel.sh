# For the scripts of trl/, swift/, openrlhf/ and skyrl/: the kernel for METHOD=cw_grpo|grpo, the only difference between rows.
source "$(dirname "${BASH_SOURCE[0]}")/claim.sh"
METHOD=${METHOD:-cw_grpo}
case $METHOD in
    cw_grpo) kernel=gaussian ;;
    grpo) kernel=none ;; # the framework's own advantages bit for bit, with the same metrics and records
    *)
        echo "METHOD=$METHOD is unknown; use cw_grpo or grpo" >&2
        exit 2
        ;;
esac
