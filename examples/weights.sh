# METHOD=cw_grpo|grpo in the scripts of trl/, swift/, openrlhf/ and skyrl/. The methods differ in the kernel alone.
# Sets kernel, which trl/ passes on; the others call export_kernel.
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

# For the hosts whose options are environment variables. With METHOD=cw_grpo, a kernel of the user's own stays.
export_kernel() {
    local of_user=${CW_GRPO_KERNEL:-}
    if [ "$METHOD" = grpo ] && [[ -z $of_user || $of_user = none ]]; then
        export CW_GRPO_KERNEL=none
    elif [ "$METHOD" = grpo ] || [ "$of_user" = none ]; then
        echo "METHOD=$METHOD and CW_GRPO_KERNEL=$of_user contradict each other; unset CW_GRPO_KERNEL, and choose by METHOD" >&2
        exit 2
    fi
}
