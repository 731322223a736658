"""verl's reward manager with a journal; loaded in verl's reward workers by ``reward.reward_manager``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from cw_plugin.evaluation.store import Journal


class JournalingRewardManager(NaiveRewardManager):
    """Grades as verl's ``naive`` does, and journals each graded answer at once; verl itself writes them only at the
    end.

    The journal's folder is ``trainer.default_local_dir``/journal; a row's ``extra_info`` names its question.
    """

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.journal = Journal(Path(config.trainer.default_local_dir) / "journal")

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        result = await super().run_single(data)
        item = data[-1:][0]
        tokens = int(item.batch["attention_mask"][-item.batch["responses"].shape[-1] :].sum())
        asked = item.non_tensor_batch["extra_info"]

        def write() -> None:
            output = self.tokenizer.decode(item.batch["responses"][:tokens], skip_special_tokens=True)
            key = {name: asked[name] for name in ("benchmark", "index", "sample")}
            self.journal.write({**key, "output": output, **result["reward_extra_info"], "tokens": tokens})

        await asyncio.get_running_loop().run_in_executor(None, write)
        return result
