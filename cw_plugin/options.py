"""The options, the same on every host. CW-GRPO has no hyperparameter."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from cw_plugin import registry
from cw_plugin.errors import OptionsError

Scope = Literal["group", "batch"]
PREFIX = "CW_GRPO_"  # of the options' environment variables


@dataclass(frozen=True)
class Options:
    """Over which tokens a weighting runs, which it is, and what is recorded.

    Attributes:
        scope: which tokens are weighted together, with the same means and sigma: those of one prompt ("group", as in
            the paper), or of the whole training batch ("batch").
        weights: "gaussian", as in the paper; "none" for plain GRPO with the same statistics; another weighting from
            the literature; or one of your own as "module:function" (weightings/README.md).
        record_every: steps between two records of a step's tokens, 0 for none (records/write.py).
        settings: numbers of the weighting, by name. Those that are not given get their defaults.

    Raises:
        OptionsError: a value that is not valid; the message says which are. Or the weighting is one of your own, and
            fails where it is tried on a small group.
    """

    scope: Scope = "group"
    weights: str = "gaussian"
    record_every: int = 50
    settings: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise OptionsError(f"scope={self.scope!r} is invalid", fix=f"use {' or '.join(get_args(Scope))}")
        if type(self.record_every) is not int or self.record_every < 0:
            raise OptionsError(
                f"record_every={self.record_every!r} is invalid", fix="use a whole number of steps, or 0"
            )
        given = self.settings
        if not isinstance(given, Mapping):
            raise OptionsError(f"settings={given!r} is invalid", fix="give a number for each name, such as alpha=0.3")
        if given or self.weights not in ("gaussian", "none"):  # which have no settings
            from cw_plugin.trial import try_weighting  # imports torch

            weighting = registry.load(self.weights, given)
            try_weighting(weighting)
            given = weighting.values
        object.__setattr__(self, "settings", dict(given))

    def load_weighting(self) -> registry.Weighting:
        """The weighting, with the settings."""
        return registry.load(self.weights, self.settings)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Options":
        """Options by name, as a host's configuration holds them. An unknown name is an OptionsError.

        The settings may be text, such as "alpha=0.3,share=0.1".
        """
        names = [field.name for field in fields(cls)]
        for name in values:
            if name not in names:
                raise OptionsError(f"{name} is not an option of cw_grpo", fix=f"the options are {', '.join(names)}")
        given = values.get("settings")
        settings = {} if given in (None, "") else given
        return cls(**{**values, "settings": _parsed(settings) if isinstance(settings, str) else settings})

    @classmethod
    def from_environment(cls) -> "Options":
        """Options of a host whose command line takes none of ours.

        They are ``CW_GRPO_SCOPE``, ``CW_GRPO_WEIGHTS``, ``CW_GRPO_SETTINGS`` and ``CW_GRPO_RECORD_EVERY``. A variable
        whose name is nearly one of these, such as ``CW_GRPO_WEIGHT``, is an OptionsError.
        """
        _refuse_near_misses()
        values: dict[str, Any] = {name.removeprefix(PREFIX).lower(): value for name, value in variables().items()}
        steps = values.get("record_every", "")
        if steps.isdecimal():
            values["record_every"] = int(steps)
        try:
            return cls.of(values)
        except OptionsError as error:
            raise OptionsError(f"{error} (from the environment variables {PREFIX}...)") from error

    def refuse_without_entropies(self, host: str, fix: str = "train with verl, TRL or ms-swift") -> None:
        """Raise OptionsError if the weighting needs entropies, which ``host`` does not have before the update."""
        if self.load_weighting().needs_entropies:
            raise OptionsError(
                f"weights={self.weights!r} needs the entropy of each position, which {host} does not compute before "
                "the update",
                fix=f"{fix}, or choose a weighting without entropies, such as gaussian or ar",
            )

    def is_due(self, step: int) -> bool:
        """Whether to record ``step``: step 1 and every ``record_every``-th. False for 0, outside of training."""
        if step < 1 or self.record_every == 0:
            return False
        return step == 1 or step % self.record_every == 0


def _parsed(text: str) -> dict[str, str]:
    """Settings by name, of a text such as "alpha=0.3,share=0.1"."""
    given = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name.strip() in given:
            fix = 'write name=value once for each, such as "alpha=0.3,share=0.1"'
            raise OptionsError(f"settings={text!r} is invalid", fix)
        given[name.strip()] = value.strip()
    return given


def _known_variables() -> list[str]:
    return [f"{PREFIX}{field.name.upper()}" for field in fields(Options)]


def _refuse_near_misses() -> None:
    """Raise OptionsError for a misspelt option. Variables of other programs may begin with the same letters."""
    known = _known_variables()
    for name in os.environ:
        if name.startswith(PREFIX) and name not in known:
            suffixes = [other.removeprefix(PREFIX) for other in known]
            similar = difflib.get_close_matches(name.removeprefix(PREFIX), suffixes, n=1)
            if similar:
                raise OptionsError(f"{name} is not an option of cw_grpo", fix=f"did you mean {PREFIX}{similar[0]}?")


def variables() -> dict[str, str]:
    """The environment variables that :meth:`Options.from_environment` reads, to be passed on to another process."""
    return {name: os.environ[name] for name in _known_variables() if name in os.environ}
