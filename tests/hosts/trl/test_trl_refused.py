"""What CWGRPOTrainer refuses: settings, a TRL of another shape, and advantages that are not its own."""

import pytest

pytest.importorskip("trl")

import re

import trl
from trl import GRPOTrainer
from trl_training import BASE, reward, train

from cw_plugin.errors import HostError, NonFiniteError, OptionsError
from cw_plugin.hosts.host import TRL
from cw_plugin.hosts.trl import CWGRPOConfig, CWGRPOTrainer
from cw_plugin.hosts.trl.__main__ import main
from cw_plugin.hosts.trl.needs import NEEDS

pytestmark = pytest.mark.filterwarnings("ignore")


class Poisoned(CWGRPOTrainer):
    def _generate(self, prompts):
        result = super()._generate(prompts)
        self.model.model.norm.weight.data.fill_(float("nan"))
        return result


def test_a_log_prob_that_is_no_number_is_refused(tmp_path):
    with pytest.raises(NonFiniteError, match=r"log_probs: NaN or infinite .* check gradient norm"):
        train(tmp_path, Poisoned)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cw_scope": "prompt"}, "cw_scope='prompt' is invalid"),
        ({"cw_weights": None}, "cw_weights=None is invalid"),
        ({"cw_weights": "ar", "cw_settings": {"alpha": 2}}, "cw_settings: alpha=2 is invalid"),
        ({"cw_weights": "ar", "cw_settings": "beta=2"}, "cw_settings: weights='ar' has no setting 'beta'"),
        ({"importance_sampling_level": "sequence"}, "'sequence' takes one ratio or advantage for a whole response"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_the_model_is_loaded(tmp_path, options, message):
    with pytest.raises(OptionsError, match=message):
        CWGRPOTrainer("no/such-model", reward, CWGRPOConfig(**BASE, output_dir=str(tmp_path), **options))
    if "importance_sampling_level" in options:  # without weights it works
        train(tmp_path, CWGRPOTrainer, cw_weights="none", max_steps=1, **options)


def test_ligers_loss_is_refused_where_a_trainer_has_it(tmp_path):
    class WithLigersLoss(CWGRPOTrainer):
        def compute_liger_loss(self):
            raise NotImplementedError

    args = CWGRPOConfig(**BASE, output_dir=str(tmp_path))
    args.use_liger_kernel = True
    with pytest.raises(OptionsError, match="use_liger_kernel=True takes one ratio or advantage for a whole response"):
        WithLigersLoss("no/such-model", reward, args)
    if not hasattr(GRPOTrainer, "compute_liger_loss"):  # of newer releases, whose loss takes each token's advantage
        with pytest.raises(OSError, match="such_model"):  # so it comes to the model
            CWGRPOTrainer(str(tmp_path / "such_model"), reward, args)


def test_without_arguments_trl_goes_on_to_make_its_own(tmp_path):
    with pytest.raises((OSError, ValueError), match=r"such_model|bf16"):  # what is missing is a model, or a GPU
        CWGRPOTrainer(str(tmp_path / "such_model"), reward)


class Patched(GRPOTrainer):
    """As Unsloth does it: _compute_loss stands, and is not called."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(inputs["completion_ids"]).logits.sum()


def test_a_trl_of_another_shape_is_refused(monkeypatch):
    TRL.require(*NEEDS)
    for other, said in (
        (trl.RLOOTrainer, "_compute_loss has no `if advantages.dim() == 1:`"),  # one advantage for a response
        (Patched, "compute_loss has no `self._compute_loss(`"),
        (trl.SFTTrainer, "there is no trl.trainer.grpo_trainer.GRPOTrainer._generate_and_score_completions"),
    ):
        monkeypatch.setattr("trl.trainer.grpo_trainer.GRPOTrainer", other)
        with pytest.raises(HostError, match=re.escape(said)):
            CWGRPOTrainer("no/such-model", reward)


@pytest.mark.parametrize("name", ["trl.cli.accelerate_launcher.launch_training_script", "trl.scripts.grpo.main"])
def test_a_trl_whose_command_is_of_another_shape_is_refused(monkeypatch, name):
    for of_trl in ("GRPOConfig", "GRPOTrainer"):  # which the command replaces
        monkeypatch.setattr(trl, of_trl, getattr(trl, of_trl))
    monkeypatch.setattr(name, reward)
    monkeypatch.setattr("sys.argv", ["trl", "grpo"])
    with pytest.raises(SystemExit, match=f"cw_grpo: cw_plugin does not fit TRL .* because {re.escape(name)} has no `"):
        main()


def test_another_wrapper_that_has_made_advantages_of_tokens_is_refused(tmp_path, monkeypatch):
    plain = GRPOTrainer._generate_and_score_completions

    def of_tokens(self, inputs):
        batch = plain(self, inputs)
        return batch | {"advantages": batch["advantages"][:, None] * batch["completion_mask"]}

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", of_tokens)
    with pytest.raises(HostError, match=r"the advantages have the shape \(8, \d+\), .*; remove that"):
        train(tmp_path)


class Elsewhere(CWGRPOTrainer):
    """As an asynchronous trainer has it: advantages that our method has not seen. It takes an argument of its own."""

    def __init__(self, *args, data_collator=None, **kwargs):
        super().__init__(*args, **kwargs)

    _generate_and_score_completions = GRPOTrainer._generate_and_score_completions


def test_a_trainer_that_gets_its_advantages_elsewhere_is_refused(tmp_path):
    with pytest.raises(HostError, match=r"Elsewhere trains on advantages that do not come from .* plain GRPO"):
        train(tmp_path, Elsewhere, {"data_collator": list})
    train(tmp_path, Elsewhere, max_steps=1, cw_weights="none")
