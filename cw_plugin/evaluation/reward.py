"""verl's reward manager, which also says which question a row answers; ``reward.reward_manager`` loads it."""

from __future__ import annotations

from typing import Any

from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager


class NamingRewardManager(NaiveRewardManager):
    """Grades as verl's ``naive`` does, and puts ``question`` into verl's dump: "aime24/7"."""

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        result = await super().run_single(data)
        result["reward_extra_info"]["question"] = data[-1:][0].non_tensor_batch["extra_info"]["question"]
        return result
