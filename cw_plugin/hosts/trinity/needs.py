"""What the plugin extends in Trinity-RFT, and what calls it there."""

from cw_plugin.hosts.host import Need

_GRPO = "trinity.algorithm.advantage_fn.grpo_advantage"
_STEP_WISE = "trinity.algorithm.advantage_fn.multi_step_grpo_advantage"
_PIPELINE = "trinity.buffer.pipelines.experience_pipeline"

NEEDS = (
    Need(_GRPO, "GRPOGroupedAdvantage.process", ("self", "exps"), exactly=True),
    Need(_STEP_WISE, "StepWiseGRPOAdvantageFn.process", ("self", "exps"), exactly=True),
    Need(
        _PIPELINE,
        "ExperiencePipeline._set_algorithm_operators",
        line="advantage_fn_cls(**algorithm_config.advantage_fn_args)",
    ),
    Need(_PIPELINE, "ExperiencePipeline._process_experiences", line="exps, metric = await operator.process(exps)"),
    Need("trinity.common.config", "Config.get_envs", line="LOG_DIR_ENV_VAR: self.log.save_dir"),
)
