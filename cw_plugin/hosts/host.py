"""The hosts: which of their functions the plugin needs, and which of their releases the tests run.

A release is accepted if it has these functions. Its number decides nothing: it is only told, in errors and in README.
"""

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable
from dataclasses import dataclass

from cw_plugin.errors import HostError


@dataclass(frozen=True)
class Need:
    """A function of a host that the plugin calls, extends or wraps. Each host's needs.py lists them.

    Attributes:
        module: has it, and is imported to look.
        name: its name there, dotted for a method.
        parameters: those that the plugin uses.
        exactly: whether it may have no other parameters.
        line: a part of its source, without which it would do something else.
    """

    module: str
    name: str
    parameters: tuple[str, ...] = ()
    exactly: bool = False
    line: str = ""

    def lacks(self) -> str:
        """What the host lacks of it, in words; empty if nothing."""
        try:
            found: object = importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if not self.module.startswith(str(error.name)):
                raise  # the module is there, and lacks a package of its own
            return f"there is no {self.module}"
        for part in self.name.split("."):
            found = getattr(found, part, None)
        return self._difference(found) if callable(found) else f"there is no {self.module}.{self.name}"

    def _difference(self, function: Callable[..., object]) -> str:
        name = f"{self.module}.{self.name}"
        parameters = inspect.signature(function).parameters
        # Ray adds parameters that begin with an underscore.
        known = tuple(parameter for parameter in parameters if not parameter.startswith("_"))
        missing = [parameter for parameter in self.parameters if parameter not in known]
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        if missing and not takes_any:
            return f"{name} has no parameter {' or '.join(missing)}"
        if self.exactly and known != self.parameters:
            return f"{name} has the parameters {', '.join(known)}, not {', '.join(self.parameters)}"
        if self.line and self.line not in inspect.getsource(function):
            return f"{name} has no `{self.line}`"
        return ""


@dataclass(frozen=True)
class Host:
    """A training framework.

    Attributes:
        name: as its authors write it.
        package: its name for pip.
        oldest: the oldest release that the tests run.
        newest: the newest one.
        left_out: the one between them that they do not run.
    """

    name: str
    package: str
    oldest: str
    newest: str
    left_out: str = ""

    @property
    def tested(self) -> str:
        """The releases that the tests run, as ``1.0 to 2.0, but not 1.5``."""
        releases = self.oldest if self.oldest == self.newest else f"{self.oldest} to {self.newest}"
        return f"{releases}, but not {self.left_out}" if self.left_out else releases

    def misfit(self, problem: str) -> HostError:
        """The error for a release that the plugin does not fit."""
        try:
            installed = f"{self.name} {importlib.metadata.version(self.package)}"
        except importlib.metadata.PackageNotFoundError:
            installed = f"this {self.name}"
        return HostError(
            f"cw_plugin does not fit {installed}, because {problem}", fix=f"install {self.package} {self.tested}"
        )

    def require(self, *needs: Need) -> None:
        """Raise HostError unless the host has all of these functions."""
        problems = [problem for need in needs if (problem := need.lacks())]
        if problems:
            raise self.misfit(", and ".join(problems))


VERL = Host("verl", "verl", oldest="0.7.1", newest="0.9.1")
TRL = Host("TRL", "trl", oldest="0.29.0", newest="1.16.0", left_out="1.15")  # 1.15 trains on GPUs alone
SWIFT = Host("ms-swift", "ms-swift", oldest="4.6.0", newest="4.6.0")
OPENRLHF = Host("OpenRLHF", "openrlhf", oldest="0.9.10", newest="0.11.2")
SKYRL = Host("SkyRL", "skyrl", oldest="0.3.0", newest="0.4.0")
TRINITY = Host("Trinity-RFT", "trinity-rft", oldest="0.6.0", newest="0.6.0")

# Programs that train with another host, or that a file of examples/ serves: the release that the tests run.
AGENT_LIGHTNING = "1.0.2"
TINKER_COOKBOOK = "0.6.1"
