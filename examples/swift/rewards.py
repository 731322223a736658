"""The paper's reward for ms-swift:  --external_plugins examples/swift/rewards.py --reward_funcs cw_accuracy cw_format

The right answers come from the dataset's columns, as in cw_plugin/lab/rewards/trl.py. A template of ms-swift may or
may not open the think section in the prompt, so cw_format accepts both.
"""

from swift.rewards import ORM, orms

from cw_plugin.lab.rewards.trl import trl_rewards

accuracy_reward, format_reward = trl_rewards()


class Accuracy(ORM):
    def __call__(self, completions: list[str], **columns) -> list[float]:
        return accuracy_reward(completions, **columns)


class Format(ORM):
    def __call__(self, completions: list[str], **columns) -> list[float]:
        return format_reward(completions)


orms |= {"cw_accuracy": Accuracy, "cw_format": Format}
