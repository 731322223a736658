"""The options, as hosts without options of ours take them: from the environment. And weightings from a file."""

import pytest
import torch

from cw_plugin.errors import OptionsError
from cw_plugin.options import Options, variables
from cw_plugin.reweight import reweight


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"SCOPE": "batch", "RECORD_EVERY": "7"}, {"scope": "batch", "record_every": 7}),
        ({"WEIGHTS": "ar"}, {"weights": "ar", "settings": {"alpha": 0.2}}),
        ({"WEIGHTS": "ar", "SETTINGS": "alpha = 0.3"}, {"weights": "ar", "settings": {"alpha": 0.3}}),
    ],
)
def test_options_come_from_the_environment_beside_the_defaults(monkeypatch, given, read):
    """Another program's variable may begin with the same letters, or be named as an option."""
    given = {f"CW_GRPO_{name}": value for name, value in given.items()}
    for name, value in {**given, "CW_GRPO_DATA": "/data", "WEIGHT": "3"}.items():
        monkeypatch.setenv(name, value)
    defaults = {"scope": "group", "weights": "gaussian", "record_every": 50, "settings": {}}
    assert vars(Options.from_environment()) == defaults | read
    assert variables() == given
    assert Options(weights="ar").settings is not Options(weights="ar").settings


@pytest.mark.parametrize(
    ("weights", "settings", "said"),
    [
        ("ar", "alpha=1.5", "alpha='1.5' is invalid; use a number from 0 to 1"),
        ("ar", "alpha=-0.3", "alpha='-0.3' is invalid; use a number from 0 to 1"),
        ("ar", "alpha=nan", "alpha='nan' is invalid; use a number from 0 to 1"),
        ("ar", "alpha=much", "alpha='much' is invalid; use a number from 0 to 1"),
        ("ar", "alpha = 0=3", "alpha='0=3' is invalid"),
        ("ar", {"alpha": True}, "alpha=True is invalid"),
        ("ar", {"alpha": None}, "alpha=None is invalid"),
        ("ar", {"alpha": 10**400}, "alpha=10+ is invalid; use a number from 0 to 1"),
        ("ar", "alpha=0.3, alpha=0.4", "settings='alpha=0.3, alpha=0.4' is invalid; write name=value once for each"),
        ("ar", "alpha", "settings='alpha' is invalid; write name=value"),
        ("ar", False, "settings=False is invalid; give a number for each name"),
        ("ar", [0.3], r"settings=\[0.3\] is invalid; give a number for each name"),
        ("stare", "alpha=0.3", "weights='stare' has no setting 'alpha'; it has share, weight"),
        ("gaussian", "alpha=0.3", "weights='gaussian' has no setting 'alpha'; it has none"),
        (["ar"], {}, r"weights=\['ar'\] is invalid; use one of gaussian, none"),
        ("clip_cov", "share=0.02,lower=6,upper=5", "lower=6 and upper=5 leave no token; set lower below upper"),
        ("clip_cov", "lower=5,upper=5", "lower=5 and upper=5 leave no token; set lower below upper"),
    ],
)
def test_a_setting_that_is_unknown_or_out_of_range_is_refused(weights, settings, said):
    with pytest.raises(OptionsError, match=said):
        Options.of({"weights": weights, "settings": settings})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("CW_GRPO_WEIGHT", "none", "CW_GRPO_WEIGHT is not an option of cw_grpo; did you mean CW_GRPO_WEIGHTS?"),
        ("CW_GRPO_SCOPE", "rank", "scope='rank' is invalid; use group or batch .*environment variables"),
        ("CW_GRPO_RECORD_EVERY", "often", "record_every='often' is invalid"),
        ("CW_GRPO_RECORD_EVERY", "-1", "record_every='-1' is invalid"),
    ],
)
def test_what_is_no_option_or_no_value_is_refused(monkeypatch, name, value, said):
    monkeypatch.setenv(name, value)
    with pytest.raises(OptionsError, match=said.replace("?", r"\?")):
        Options.from_environment()


def test_steps_are_due(monkeypatch):
    for wrong in (-1, True):
        with pytest.raises(OptionsError, match=f"record_every={wrong} is invalid"):
            Options(record_every=wrong)
    due = [step for step in range(12) if Options(record_every=5).is_due(step)]
    assert due == [1, 5, 10]
    assert not any(Options(record_every=0).is_due(step) for step in range(12))


def own_weighting(folder, monkeypatch, source):
    """The name of a weighting in a file of its own."""
    name = f"weights_{abs(hash(source))}"
    (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    return f"{name}:w"


def declared(body, scaled=False, parameters="group, power", default=1.0, high=4):
    return f"""
import torch
from cw_plugin.registry import Setting, weighting

@weighting(scaled={scaled}, settings={{"power": Setting({default}, low=0, high={high})}})
def w({parameters}):
    return {body}
"""


AN_OBJECT = """
from cw_plugin.registry import weighting

class Object:
    __name__ = "w"

    def __call__(self, group):
        return group.nothing

w = weighting(scaled=True)(Object())
"""
BARE = "from cw_plugin.registry import weighting\n\n{}\ndef w(group):\n    return group.z\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("\nscale = 1 / width\n", r"imported \(NameError: name 'width' is not defined.; mend .*weights_\d+.py, line 2"),
        ("\nimport no_such_module\n", r"No module named 'no_such_module'.; mend .*weights_\d+.py, line 2"),
        ("\nfrom torch import no_such_name\n", r"ImportError: cannot import .*; mend .*weights_\d+.py, line 2"),
        ("def w(group):\n    return group.z +\n", r"imported \(SyntaxError: .*; mend .*weights_\d+.py, line 2"),
        (BARE.format("@weighting"), r"write @weighting\(scaled=True\)\); mend .*weights_\d+.py, line [34]"),
        (BARE.format("@weighting()"), r"write @weighting\(scaled=True\)\); mend .*weights_\d+.py, line [34]"),
        (declared("group.log_probs"), "weights must be finite and not negative"),
        (declared("torch.softmax(group.z, 5)"), r"raised IndexError: .*; mend it in .*weights_\d+.py, line 7, for"),
        (declared("group.z", parameters="group"), r"TypeError: .*'power'; mend it in .*weights_\d+.py, line 5, for"),
        (AN_OBJECT, r"raised AttributeError: .*'nothing'; mend it in .*weights_\d+.py, line 8, for"),
        (declared("group.z", default=5), "power=5 is invalid; use a number from 0 to 4"),
        (declared("group.z", default="1e400", high="1e400"), "power=inf is invalid"),
        (declared("group.z.abs() / group.z.abs().max()"), "returned nan at .*, advantage=0 and z=-?0; weights must"),
        (declared("torch.rand(len(group.z))"), "other weights when it was asked again; let them .*generator"),
        (declared("group.batch_entropy * group.z"), "without saying so; declare it with needs_batch_entropy=True"),
        (declared("torch.full_like(group.z, 1e-40)", True), "returned weights of 1e-40 at most, too small to be"),
        (declared("torch.full_like(group.z, 3e38)"), "returned weights that are too large; make them smaller"),
    ],
)
def test_a_weighting_of_ones_own_that_is_wrong_is_refused_before_the_run(tmp_path, monkeypatch, source, said):
    name = own_weighting(tmp_path, monkeypatch, source)
    with pytest.raises(OptionsError, match=f"weights='{name}'.*{said}"):
        Options(weights=name)


def test_a_weighting_of_ones_own_has_settings_and_may_have_a_gradient(tmp_path, monkeypatch):
    source = declared("group.log_probs.exp() ** torch.nn.Parameter(torch.tensor(power))")
    name = own_weighting(tmp_path, monkeypatch, source)
    assert Options(weights=name).settings == {"power": 1.0}
    log_probs, mask = torch.tensor([[-0.5, -2.0]]), torch.ones(1, 2)
    weighting = Options(weights=name, settings={"power": 2}).load_weighting()
    reweighted, _ = reweight(log_probs, torch.ones(1), mask, weights=weighting)
    torch.testing.assert_close(reweighted, torch.tensor([[-1.0, -4.0]]).exp())
    assert [Options(weights=name, settings={"power": end}).settings["power"] for end in (0, 4)] == [0, 4]
