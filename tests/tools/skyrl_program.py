"""A program as those of SkyRL's examples: a trainer and an experiment of its own, trained in a worker of Ray, or here.

In the place of SkyRL's models and generator stand those of skyrl_trainers.py. The trainer makes one step, and writes
the advantages and its metrics to the file OUT.
"""

import os
import sys

import ray
import torch
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import initialize_ray, validate_cfg
from skyrl_trainers import Workers, rollouts, train


class Halves(RayPPOTrainer):
    """As DAPO's trainer in SkyRL's examples, it changes rewards."""

    def postprocess_generator_output(self, generator_output, uids):
        generator_output["rewards"] = [[value / 2 for value in row] for row in generator_output["rewards"]]
        return super().postprocess_generator_output(generator_output, uids)

    def _build_train_dataloader_and_compute_training_steps(self):
        pass

    def build_models(self, *_):
        self.dispatch, self.global_step = Workers(), 1

    async def train(self):
        advantages, _ = train(self, *rollouts())
        torch.save({"advantages": advantages, "metrics": self.all_metrics}, os.environ["OUT"])


class Exp(BasePPOExp):
    def get_train_dataset(self):
        return None

    get_eval_dataset = get_colocate_pg = get_inference_client = get_train_dataset

    def get_generator(self, *_):
        return None

    def get_trainer(self, *args, **kwargs):
        return Halves(*args, **kwargs)


@ray.remote(num_cpus=1)
def entrypoint(cfg):
    Exp(cfg).run()


if __name__ == "__main__":
    cfg = SkyRLTrainConfig.from_cli_overrides(sys.argv[1:])
    cfg.trainer.recompute_old_logprobs_per_minibatch = False  # one forward pass, which Workers has
    validate_cfg(cfg)
    initialize_ray(cfg)
    if os.environ.get("WHERE") == "here":
        Exp(cfg).run()
        sys.exit()
    ray.get(entrypoint.options(runtime_env={"env_vars": {"OUT": os.environ["OUT"]}}).remote(cfg))
