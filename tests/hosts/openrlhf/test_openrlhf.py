"""CW-GRPO in OpenRLHF's own sample, experience, advantage and loss classes, on CPU tensors.

test_openrlhf_releases.py runs this file under the oldest and the newest release that fit.
"""

import copy
import functools
import json
import logging
import random
import runpy
import sys
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import wrapt
from interpreter import ROOT, bash
from openrlhf.models import Actor, PolicyLoss
from openrlhf.models.utils import compute_approx_kl
from openrlhf.trainer import ppo_trainer_async
from openrlhf.trainer.ppo_utils.experience import balance_experiences
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from pretend_device import DEVICE, Pretend, back, on_device
from pyarrow import parquet
from ray import cloudpickle
from reference import reference_advantages
from reference_weightings import reference_weighted
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from cw_plugin.errors import HostError, NonFiniteError, OptionsError
from cw_plugin.hosts.host import OPENRLHF
from cw_plugin.hosts.openrlhf import hook, refused_settings
from cw_plugin.options import Options

PROMPTS, SAMPLES = 8, 6
MODEL = ROOT / "examples" / "cpu" / "model"
FLAT = version("openrlhf").startswith(("0.9.", "0.10.0", "0.10.1"))  # arguments are nested from 0.10.2 on
IN_0_9 = {
    "actor.num_gpus_per_node": "actor_num_gpus_per_node",
    "actor.policy_loss_type": "policy_loss_type",
    "algo.advantage.estimator": "advantage_estimator",
    "algo.kl.init_coef": "init_kl_coef",
    "algo.kl.use_loss": "use_kl_loss",
    "ckpt.load_enable": "load_checkpoint",
    "ckpt.output_dir": "save_path",
    "ckpt.path": "ckpt_path",
    "reward.remote_url": "remote_rm_url",
    "rollout.max_tokens_per_gpu": "rollout_max_tokens_per_gpu",
    "rollout.micro_batch_size": "micro_rollout_batch_size",
    "rollout.n_samples_per_prompt": "n_samples_per_prompt",
    "train.dynamic_batch_enable": "use_dynamic_batch",
}
# The trainer's class as a driver without the hook sends it to a worker.
SENT = cloudpickle.dumps(ppo_trainer_async.TrainingActor.__ray_metadata__.modified_class)


@pytest.fixture(scope="module", autouse=True)
def plain():
    """OpenRLHF's own method, which importing this package has not changed; then the hook is installed."""
    before = vars(RemoteExperienceMaker)["compute_advantages_and_returns"]
    assert not isinstance(before, wrapt.ObjectProxy) and not hook.installed()
    hook.install()
    hook.install()
    assert hook.installed()
    assert vars(RemoteExperienceMaker)["compute_advantages_and_returns"].__wrapped__ is before
    return before


@pytest.fixture(scope="module")
def actor() -> Actor:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    model = Qwen2ForCausalLM(config).float()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # log-probs that differ
    actor = Actor(model)
    actor.packing_samples = False
    return actor


def flag(argument: str) -> str:
    return IN_0_9[argument] if FLAT else argument


@functools.cache
def parsed(*arguments: str) -> Any:
    """What train_ppo_ray makes of its arguments."""
    stop = Mock(side_effect=SystemExit)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("openrlhf.utils.get_strategy", stop)
        patch.setattr("ray.is_initialized", lambda: True)
        patch.setattr(sys, "argv", ["train_ppo_ray", *arguments])
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
    assert stop.called
    return stop.call_args.args[0]


def settings(tmp_path, **changed: Any) -> Any:
    args = copy.deepcopy(parsed("--" + flag("reward.remote_url"), "none.py"))
    values = {
        "actor.num_gpus_per_node": 2,
        "algo.kl.init_coef": 0.0,
        "algo.advantage.estimator": "group_norm",
        "ckpt.output_dir": str(tmp_path),
        "ckpt.path": str(tmp_path / "checkpoints"),
        "rollout.n_samples_per_prompt": SAMPLES,
        "rollout.micro_batch_size": 4,  # which does not divide a group
        "rollout.max_tokens_per_gpu": 200,
    }
    for argument, value in (values | changed).items():
        *parents, last = flag(argument).split(".")
        setattr(functools.reduce(getattr, parents, args), last, value)
    return args


def maker_of(args: SimpleNamespace) -> RemoteExperienceMaker:
    strategy, kl = SimpleNamespace(args=args), SimpleNamespace(value=0.0)
    return RemoteExperienceMaker(None, None, None, None, kl, strategy, AutoTokenizer.from_pretrained(MODEL))


def samples(turns: int, seed: int = 0) -> list[Any]:
    """What the generator makes of vLLM's answers. Responses of several turns have tokens of the environment between."""
    chance, made = random.Random(seed), []
    generator = SamplesGenerator.__new__(SamplesGenerator)
    for number in range(PROMPTS):
        prompt = [chance.randrange(300) for _ in range(chance.randint(3, 12))]
        for _ in range(SAMPLES):
            response = [chance.randrange(300) for _ in range(chance.randint(2 * turns - 1, 30))]
            cuts = sorted(chance.sample(range(1, len(response)), 2 * turns - 2)) if turns > 1 else []
            bounds = [len(prompt) + cut for cut in (0, *cuts, len(response))]
            answer = {
                "observation_tokens": prompt + response,
                "action_ranges": list(zip(bounds[::2], bounds[1::2], strict=True)),
                "reward": float(chance.random() < 0.5) if number else 1.0,  # the first prompt has no signal
                "scores": 0.0,
                "rollout_log_probs": None,
                "prompt": f"prompt {number}",
                "label": "",
                "truncated": False,
            }
            made.append(generator._process_response_into_experience(answer))
    return made


def experiences(maker: RemoteExperienceMaker, actor: Actor, turns: int) -> list[Any]:
    """What make_experience gives to compute_advantages_and_returns."""
    made = maker.split_rollout_samples(samples(turns))
    for experience in made:
        with torch.no_grad():
            log_probs = actor(experience.sequences, experience.action_mask, experience.attention_mask)
        experience.action_log_probs = log_probs
        experience.kl = compute_approx_kl(log_probs, log_probs, kl_estimator="k1")
    return made


def expected(plain: list[Any], scope: str) -> tuple[list[list[float]], float]:
    """w~ A of every row, with groups by the text of the prompt, in float64; and the mean sigma of the groups."""
    rows = [(e.action_log_probs[i], e.advantages[i], e.action_mask[i], e.prompts[i]) for e, i in each(plain)]
    log_probs, advantages, masks, prompts = zip(*rows, strict=True)
    uids = prompts if scope == "group" else [0] * len(rows)
    weighted, groups = reference_advantages(log_probs, advantages, masks, uids)
    assert len(groups) == (PROMPTS if scope == "group" else 1)
    sigmas = [group["sigma"] for group in groups.values() if group["sigma"] > 0]
    return weighted, sum(sigmas) / len(sigmas)


def expected_of(name: str, plain: list[Any], scope: str) -> list[list[float]]:
    """The advantages of every row with the weights of a weighting that needs no entropies."""
    rows = [(e.action_log_probs[i], e.advantages[i], e.action_mask[i], e.prompts[i]) for e, i in each(plain)]
    width = max(len(mask) for _, _, mask, _ in rows)
    log_probs, advantages, masks = (
        torch.stack([torch.nn.functional.pad(row[at].double(), (0, width - len(row[at]))) for row in rows])
        for at in range(3)
    )
    uids = [prompt for *_, prompt in rows] if scope == "group" else [0] * len(rows)
    weighted = reference_weighted(name, log_probs, advantages, masks, uids, torch.zeros_like(log_probs))
    return [row[: len(mask)].tolist() for row, (_, _, mask, _) in zip(weighted, rows, strict=True)]


def each(made: list[Any]):
    return ((experience, i) for experience in made for i in range(len(experience.prompts)))


def both(plain, maker, actor, turns=1) -> tuple[list[Any], list[Any]]:
    made = experiences(maker, actor, turns)
    return plain(maker, copy.deepcopy(made)), maker.compute_advantages_and_returns(made)


@pytest.mark.parametrize(
    ("estimator", "turns", "dynamic", "scope"),
    [*((name, 1, False, "group") for name in refused_settings.GROUPED),
     ("group_norm", 3, True, "group"), ("group_norm", 1, False, "batch")],
)  # fmt: skip
def test_every_row_reaches_the_loss_with_the_weights_of_its_group(
    plain, actor, tmp_path, monkeypatch, estimator, dynamic, turns, scope
):
    monkeypatch.setenv("CW_GRPO_SCOPE", scope)
    args = settings(tmp_path, **{"algo.advantage.estimator": estimator, "train.dynamic_batch_enable": dynamic})
    before, after = both(plain, maker_of(args), actor, turns)
    wanted, mean_sigma = expected(before, scope)
    for (experience, i), row in zip(each(after), wanted, strict=True):
        assert experience.advantages[i].tolist() == pytest.approx(row, abs=1e-6)
    assert any(len(set(w)) > 3 for w in wanted)
    for experience in after:  # which Ray sends without the rest of the batch
        assert experience.advantages.untyped_storage().nbytes() == 4 * experience.advantages.numel()
    sigma = {float(value) for experience in after for value in experience.info["cw_grpo/sigma"]}
    assert len(sigma) == 1 and sigma.pop() == pytest.approx(mean_sigma, rel=1e-4)

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    if dynamic:
        after = balance_experiences(after, args)
    loss, total, of_prompt = PolicyLoss(), 0.0, {}
    tokens = float(sum(int(e.action_mask[i].sum()) for e, i in each(before)))
    share = (len(after) + 1) // 2
    for number in range(2):  # as RayActorGroup spreads them
        buffer = NaiveReplayBuffer(4)
        for experience in after[number * share : (number + 1) * share]:
            buffer.append(experience)
        for item in buffer.items:
            of_prompt.setdefault(item.prompts[0], set()).add(number)
        random.Random(1).shuffle(buffer.items)
        for first in range(0, len(buffer.items), 4):
            batch = buffer.collate_fn(buffer.items[first : first + 4])
            with torch.no_grad():
                log_probs = actor(batch.sequences, batch.action_mask, batch.attention_mask)
            value = loss(log_probs, batch.action_log_probs, batch.advantages, batch.action_mask)[0]
            total += value.item() * float(batch.action_mask.sum())
    assert any(len(actors) > 1 for actors in of_prompt.values()) or not dynamic
    assert total / tokens == pytest.approx(-sum(map(sum, wanted)) / tokens, abs=1e-6)


@pytest.mark.parametrize("scope", ["group", "batch"])
@pytest.mark.parametrize("name", ["ar", "stare", "drop_top_cov", "w_reinforce"])
def test_every_weighting_weighs_whole_groups(plain, actor, tmp_path, monkeypatch, name, scope):
    monkeypatch.setenv("CW_GRPO_SCOPE", scope)
    monkeypatch.setenv("CW_GRPO_WEIGHTS", name)
    before, after = both(plain, maker_of(settings(tmp_path, **{"train.dynamic_batch_enable": True})), actor, turns=3)
    for (experience, i), row in zip(each(after), expected_of(name, before, scope), strict=True):
        assert experience.advantages[i].tolist() == pytest.approx(row, abs=1e-6)


def test_a_weighting_that_needs_entropies_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("CW_GRPO_WEIGHTS", "steer")
    with pytest.raises(OptionsError, match=r"'steer' needs the entropy .* OpenRLHF does not .*; train with verl"):
        maker_of(settings(tmp_path))


def test_the_weights_none_are_openrlhf_bit_for_bit(plain, actor, tmp_path, monkeypatch):
    monkeypatch.setenv("CW_GRPO_WEIGHTS", "none")
    maker = maker_of(settings(tmp_path, **{"train.dynamic_batch_enable": True}))
    before, after = both(plain, maker, actor)
    for ours, theirs in zip(after, before, strict=True):
        assert torch.equal(ours.advantages, theirs.advantages) and torch.equal(ours.returns, theirs.returns)
        covariance = [float(ours.info[f"cw_grpo/covariance_{when}"][0]) for when in ("before", "after")]
        assert covariance[0] == pytest.approx(covariance[1], rel=1e-5) and covariance[0] != 0


def test_a_step_is_recorded_with_its_prompts_and_tokens(plain, actor, tmp_path, monkeypatch):
    """The step is the one that OpenRLHF logs it under."""
    monkeypatch.setenv("CW_GRPO_RECORD_EVERY", "4")
    maker = maker_of(settings(tmp_path))
    made = experiences(maker, actor, turns=3)

    class Enough(Exception):
        pass

    def make_experience_batch(_):
        maker.compute_advantages_and_returns(copy.deepcopy(made))
        raise Enough

    monkeypatch.setattr(maker, "make_experience_batch", make_experience_batch)
    trainer_class = cloudpickle.loads(cloudpickle.dumps(cloudpickle.loads(SENT)))  # an actor starts the trainer's actor
    trainer = trainer_class.__new__(trainer_class)
    trainer.experience_maker = maker
    for global_step in (2, 3):
        with pytest.raises(Enough):
            trainer.train_step([], global_step)
    file = tmp_path / "tokens" / "step_000004.parquet"
    assert list(file.parent.iterdir()) == [file]
    table, row = parquet.read_table(file).to_pydict(), samples(turns=3)[0]
    ids = [i for i, number in zip(table["token_id"], table["row"], strict=True) if number == 0]
    assert ids == row.sequences[0, 1:][row.action_mask[0].bool()].tolist()
    prompts = json.loads(parquet.read_metadata(file).metadata[b"prompts"])
    first = int(row.action_mask[0].argmax()) + 1
    assert prompts["0"] == maker.tokenizer.decode(row.sequences[0, :first].tolist(), skip_special_tokens=True)
    assert len(prompts) == PROMPTS


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"algo.kl.init_coef": 0.01}, "KL penalty into the reward"),
        ({"algo.advantage.estimator": "gae"}, "no prompt groups"),
        ({"rollout.n_samples_per_prompt": 1}, "one response in a prompt group"),
        ({"actor.policy_loss_type": "gspo"}, "one ratio for a response"),
    ],
)
def test_what_would_not_be_the_method_is_refused_before_training(tmp_path, changed, said):
    with pytest.raises(OptionsError, match=said) as caught:
        maker_of(settings(tmp_path, **changed))
    (argument,) = changed
    assert flag(argument) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("weights", "changed", "said"),
    [
        ("none", {"actor.policy_loss_type": "gspo"}, "the host's own advantages"),
        ("gaussian", {"algo.kl.init_coef": 0.01, "algo.kl.use_loss": True}, "reweighted advantages"),
    ],
)
def test_what_loses_no_weights_is_allowed_and_said_once(tmp_path, monkeypatch, caplog, weights, changed, said):
    logger = logging.getLogger(hook.MAKER)  # which does not propagate
    logger.addHandler(caplog.handler)
    monkeypatch.setenv("CW_GRPO_WEIGHTS", weights)
    maker_of(settings(tmp_path, **changed))
    logger.removeHandler(caplog.handler)
    assert caplog.text.count("cw_grpo") == caplog.text.count(said) == 1


def test_checkpoints_keep_their_method(actor, tmp_path, monkeypatch):
    """tests/test_run.py tests the rule; here, that OpenRLHF's checkpoints are found and the method is written down."""
    maker = maker_of(settings(tmp_path))
    maker.compute_advantages_and_returns(experiences(maker, actor, turns=1))
    monkeypatch.setenv("CW_GRPO_WEIGHTS", "none")
    maker_of(settings(tmp_path))  # the first was killed before its first checkpoint
    (tmp_path / "checkpoints" / "_actor").mkdir()
    for resumes in (True, False):
        with pytest.raises(OptionsError, match=r"checkpoints .* weights='gaussian', and this run has weights='none'"):
            maker_of(settings(tmp_path, **{"ckpt.load_enable": resumes}))


@pytest.mark.parametrize(("what", "rows"), [("log_probs", [6]), ("advantages", [6, 7, 8, 9, 10, 11])])
def test_a_value_that_is_not_a_number_stops_the_run(actor, tmp_path, what, rows):
    maker = maker_of(settings(tmp_path))
    made = experiences(maker, actor, turns=1)
    if what == "log_probs":
        made[1].action_log_probs[2, int(made[1].action_mask[2].argmax())] = float("nan")
    else:  # by the reward of one response to the second prompt
        made[1].rewards[2] = float("nan")
    with pytest.raises(NonFiniteError, match=f"{what}: NaN or infinite .* check") as caught:
        maker.compute_advantages_and_returns(made)
    assert caught.value.rows == rows


@pytest.mark.parametrize("scope", ["group", "batch"])
def test_on_a_device_experiences_are_reweighted_as_on_the_cpu(plain, actor, tmp_path, monkeypatch, scope):
    monkeypatch.setenv("CW_GRPO_SCOPE", scope)
    maker = maker_of(settings(tmp_path))
    maker.cw_grpo.step = 1  # which is recorded
    made = plain(maker, experiences(maker, actor, turns=3))
    there = copy.deepcopy(made)
    for experience in there:
        for name in ("sequences", "action_log_probs", "advantages", "action_mask", "rewards"):
            setattr(experience, name, on_device(getattr(experience, name)))
    maker.cw_grpo.reweight(made)
    with Pretend():
        maker.cw_grpo.reweight(there)
    for experience, expected in zip(there, made, strict=True):
        assert experience.advantages.device == DEVICE
        assert torch.equal(back(experience.advantages), expected.advantages)
        assert torch.equal(experience.info["cw_grpo/sigma"], expected.info["cw_grpo/sigma"])
    on_cpu, on_it = (parquet.read_table(tmp_path / "tokens" / f"step_000001{part}.parquet") for part in ("", "-2"))
    assert on_cpu == on_it


def test_advantages_that_differ_within_a_response_are_refused(actor, tmp_path):
    """A penalty that this release does not have, but the next may."""
    maker = maker_of(settings(tmp_path))
    made = experiences(maker, actor, turns=1)
    maker.kl_ctl.value = 0.1
    for experience in made:
        experience.kl = torch.rand_like(experience.action_log_probs)
    with pytest.raises(HostError, match="differs within a response"):
        maker.compute_advantages_and_returns(copy.deepcopy(made))


@pytest.mark.skipif(version("openrlhf") != OPENRLHF.newest, reason="the recipe is for the newest")
def test_openrlhf_accepts_the_arguments_of_the_recipe():
    args = parsed(*bash("openrlhf/paper.sh", DRY_RUN="1").stdout.splitlines())
    assert refused_settings.check(args, Options()).samples == 12 and args.algo.kl.use_loss is True
