# METHOD=cw_grpo|grpo in the scripts of trl/, swift/, openrlhf/ and skyrl/. The methods differ in the weights alone.
# Sets weights, which trl/ passes on; the others call export_weights.
source "$(dirname "${BASH_SOURCE[0]}")/claim.sh"
METHOD=${METHOD:-cw_grpo}
case $METHOD in
    cw_grpo) weights=gaussian ;;
    grpo) weights=none ;; # the framework's own advantages, bit for bit, with the same metrics and records
    *)
        echo "METHOD=$METHOD is unknown; use cw_grpo or grpo" >&2
        exit 2
        ;;
esac

# For the hosts whose options are environment variables. With METHOD=cw_grpo, weights of the user's own choice stay.
export_weights() {
    local of_user=${CW_GRPO_WEIGHTS:-}
    if [ "$METHOD" = grpo ] && [[ -z $of_user || $of_user = none ]]; then
        export CW_GRPO_WEIGHTS=none
    elif [ "$METHOD" = grpo ] || [ "$of_user" = none ]; then
        echo "METHOD=$METHOD and CW_GRPO_WEIGHTS=$of_user contradict each other; unset CW_GRPO_WEIGHTS, and choose by METHOD" >&2
        exit 2
    fi
}
