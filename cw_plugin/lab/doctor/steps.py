"""How many steps the rows of a run are enough for, in verl's trainers."""

from collections.abc import Iterator

from omegaconf import DictConfig

from cw_plugin.hosts.verl.refused_settings import uses_v1
from cw_plugin.lab.doctor.files import checkpoint_of
from cw_plugin.lab.doctor.finding import Finding


def check_steps(config: DictConfig, rows: int) -> Iterator[Finding]:
    """At most one finding: a run that trains no step, fails in the first, or ends before its last.

    Args:
        config: verl's.
        rows: those that the training dataset has after ``train_max_samples`` and the filter of overlong prompts.
    """
    data, trainer = config.data, config.trainer
    fetched = data.get("gen_batch_size") or data.train_batch_size
    # The legacy trainer counts the batches of its loader; V1 counts training batches, and fetches several for one.
    batch = data.train_batch_size if uses_v1(config) else fetched
    if trainer.get("val_only") or config.get("async_training") is not None:  # fully_async_policy counts rollouts
        return
    by_rows = f"data.train_files has {rows} row(s) for the run"
    in_an_epoch, saved = rows // batch, _saved_step(config)
    steps, wanted = in_an_epoch * trainer.total_epochs, trainer.total_training_steps
    # The other trainers look whether a step is the last one when they have done it.
    trained = min(steps, wanted) if uses_v1(config) and wanted is not None else steps
    if in_an_epoch == 0:
        yield Finding(f"{by_rows}, fewer than a batch of {batch}: verl trains no step", "more rows, or a smaller batch")
    elif uses_v1(config) and data.train_batch_size % fetched and not _fetches_single_rows(config):
        problem = f"data.train_batch_size={data.train_batch_size} is no multiple of data.gen_batch_size={fetched}"
        yield Finding(f"{problem}, which verl refuses in the first step", "a multiple, or data.gen_batch_size=null")
    elif trained < 1:
        problem = f"trainer.total_epochs={trainer.total_epochs} and total_training_steps={wanted}: verl trains no step"
        yield Finding(problem, "at least 1 of each, or total_training_steps=null")
    elif trained <= saved:
        problem = f"trainer.resume_mode={trainer.resume_mode} finds the checkpoint of step {saved} of {trained}"
        fix = "another folder, or more steps"
        yield Finding(f"{problem}: verl resumes it, and trains no step", fix, fatal=False)
    elif wanted is not None and steps < wanted:
        epochs = f"trainer.total_epochs={trainer.total_epochs}"
        problem = f"{by_rows}, {in_an_epoch} step(s) of {batch} in an epoch: {epochs} ends after {steps} step(s)"
        lost = f", not {wanted}, without the last validation and checkpoint"
        yield Finding(problem + lost, "more epochs, or as many trainer.total_training_steps as the rows are enough for")


def _saved_step(config: DictConfig) -> int:
    """The step that V1 would resume; 0 if none."""
    folder = checkpoint_of(config) if uses_v1(config) else ""
    return int(folder.split("_")[-1]) if folder else 0


def _fetches_single_rows(config: DictConfig) -> bool:
    """Whether V1 overrides ``gen_batch_size`` by 1."""
    v1, filtered = config.trainer.v1, config.algorithm.filter_groups
    return bool(v1.trainer_mode != "sync" or filtered.enable or v1.sampler.sync_refill_failed_groups)
