# Sets the kernel for METHOD=cw_grpo|grpo in the scripts of trl/, swift/, openrlhf/ and skyrl/. The methods differ only in it.
source "$(dirname "${BASH_SOURCE[0]}")/claim.sh"
METHOD=${METHOD:-cw_grpo}
case $METHOD in
    cw_grpo) kernel=gaussian ;;
    grpo) kernel=none ;; # the framework's own advantages, bit for bit, with the same metrics and records
    *)
        echo "METHOD=$METHOD is unknown; use cw_grpo or grpo" >&2
        exit 2
        ;;
esac

# export_kernel: for the hosts whose options are environment variables. With METHOD=cw_grpo, a kernel of the user's own stays.
export_kernel() {
    case $METHOD,${CW_GRPO_KERNEL:-} in
        grpo, | grpo,none) export CW_GRPO_KERNEL=none ;;
        grpo,* | cw_grpo,none)
            echo "METHOD=$METHOD and CW_GRPO_KERNEL=$CW_GRPO_KERNEL contradict each other; unset CW_GRPO_KERNEL, and choose by METHOD" >&2
            exit 2
            ;;
    esac
}
