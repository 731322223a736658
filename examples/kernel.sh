# Sets the kernel for METHOD=cw_grpo|grpo in the scripts of trl/, swift/, openrlhf/ and skyrl/. The methods differ only in it.
source "$(dirname "${BASH_SOURCE[0]}")/claim.sh"
METHOD=${METHOD:-cw_grpo}
case $METHOD in
    cw_grpo)
        kernel=gaussian
        if [ "${CW_GRPO_KERNEL:-}" = none ]; then
            echo "CW_GRPO_KERNEL=none is plain GRPO, and METHOD is cw_grpo; set METHOD=grpo, or unset CW_GRPO_KERNEL" >&2
            exit 2
        fi
        ;;
    grpo) kernel=none ;; # the framework's own advantages, bit for bit, with the same metrics and records
    *)
        echo "METHOD=$METHOD is unknown; use cw_grpo or grpo" >&2
        exit 2
        ;;
esac
