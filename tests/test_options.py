"""The options, as hosts without options of ours take them: from the environment. And weightings from a file."""

import pytest

from cw_plugin.errors import OptionsError
from cw_plugin.options import Options, variables


def test_options_come_from_the_environment(monkeypatch):
    """Another program's variable may begin with the same letters."""
    given = {"CW_GRPO_SCOPE": "batch", "CW_GRPO_WEIGHTS": "none", "CW_GRPO_RECORD_EVERY": "7"}
    for name, value in {**given, "CW_GRPO_DATA": "/data"}.items():
        monkeypatch.setenv(name, value)
    assert Options.from_environment() == Options("batch", "none", 7)
    assert variables() == given


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("CW_GRPO_WEIGHT", "none", "CW_GRPO_WEIGHT is not an option of cw_grpo; did you mean CW_GRPO_WEIGHTS?"),
        ("CW_GRPO_SCOPES", "group", "did you mean CW_GRPO_SCOPE?"),
        ("CW_GRPO_RECORDEVERY", "5", "did you mean CW_GRPO_RECORD_EVERY?"),
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
    due = [step for step in (None, 0, *range(1, 12)) if Options(record_every=5).is_due(step)]
    assert due == [1, 5, 10]
    assert not any(Options(record_every=0).is_due(step) for step in range(12))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("\nscale = 1 / width\n", "NameError: name 'width' is not defined.; mend .*broken_weights.py, line 2"),
        ("def w(group):\n    return group.z +\n", "SyntaxError: .*; mend .*broken_weights.py, line 2"),
    ],
)
def test_a_weighting_whose_file_is_broken_is_refused_with_its_line(tmp_path, monkeypatch, source, said):
    (tmp_path / "broken_weights.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(OptionsError, match=rf"weights='broken_weights:w' cannot be imported \({said}"):
        Options(weights="broken_weights:w")
