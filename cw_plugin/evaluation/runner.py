"""verl's task runner for one validation of many in one Ray job."""

from __future__ import annotations

from typing import Any

import ray
from verl.trainer.main_ppo import TaskRunnerV1


@ray.remote
class Runner:
    """Runs verl's task runner, then removes its placement groups: Ray would hold their devices until the job ends."""

    def run(self, config: Any) -> None:
        """Validate as ``config`` says."""
        runner = TaskRunnerV1.__ray_metadata__.modified_class()
        runner.run(config)
        for pool in runner.trainer.resource_pool_manager.resource_pool_dict.values():
            for group in pool.get_placement_groups():
                ray.util.remove_placement_group(group)
