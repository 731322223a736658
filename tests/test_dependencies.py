"""pyproject.toml asks for what the package imports, and for nothing else: the base package and each extra."""

import ast
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "cw_plugin"

# What a part imports besides. A host brings its own packages, and pip must not replace them.
TORCH = {"torch"}
EXTRAS_OF = {
    "data": {"data"},
    "rewards": {"reward"},
    "reports": {"report"},
    "configs.py": {"report"},  # which only reports, evaluation and verl's side import
    "evaluation": {"report"},
    "records": {"report"},  # reading them
    "trl_integration": {"trl"},
    "swift_integration.py": {"swift"},
}
HOST_OF = {
    "accelerate_batches.py": TORCH,
    "cli.py": {"omegaconf"},
    "evaluation": {"transformers"},
    "verl_integration": {
        *("verl", "torch", "ray", "transformers", "transferqueue", "hydra-core", "omegaconf"),
        "pyyaml",  # omegaconf itself asks for it
    },
    "trl_integration": {"torch", "transformers"},
    "rewards": {"transformers", "skyrl-gym"},  # of the tokenizer that verl or TRL passes; of SkyRL
    "swift_integration.py": {"torch"},
    "openrlhf_integration": {"openrlhf", "torch", "ray"},
    "kernels.py": TORCH,
    "method_callback.py": {"transformers"},  # of TRL and ms-swift
    "padding.py": TORCH,
    "records": TORCH,
    "skyrl_integration": {"skyrl", "skyrl-gym", "torch", "ray"},
    "weights.py": TORCH,
    "whole_batch.py": TORCH,
}
# Imported only where its files are there, with a message that says how to install it.
OPTIONAL = {"reports": {"tensorboard"}}
# Asked for, though nothing here imports them: messages name the command `hf`, which earlier versions do not have;
# ms-swift imports msgspec, and does not ask for it.
NOT_IMPORTED = {"huggingface-hub", "msgspec"}
NAMES = {
    "swift": "ms-swift",
    "ms_swift": "ms-swift",
    "transfer_queue": "transferqueue",
    "hydra": "hydra-core",
    "yaml": "pyyaml",
}


def name_of(requirement: str) -> str:
    """``datasets>=3`` is datasets, in pip's spelling."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BASE = {name_of(requirement) for requirement in PROJECT["dependencies"]}


def asked_for(extra: str) -> set[str]:
    """The distributions of an extra, and of those that it names: ``cw-plugin[reward]``."""
    names = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        if others := re.fullmatch(r"cw-plugin\[(.+)\]", requirement):
            names.update(*map(asked_for, others[1].split(",")))
        else:
            names.add(name_of(requirement))
    return names


def imported(part: Path) -> set[str]:
    """The distributions that a file, or the files of a folder, import anywhere."""
    distributions, modules = packages_distributions(), set()
    for file in [part] if part.is_file() else part.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                modules.add(node.module.split(".")[0])
    modules -= {*sys.stdlib_module_names, "cw_plugin"}
    return {name_of(NAMES.get(module) or distributions.get(module, [module])[0]) for module in modules}


PARTS = sorted(path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())


@pytest.mark.parametrize("part", PARTS, ids=lambda path: path.name)
def test_what_is_imported_is_asked_for(part):
    extras = set().union(*map(asked_for, EXTRAS_OF.get(part.name, ())))
    of_host = imported(part) - BASE - extras - OPTIONAL.get(part.name, set())
    assert of_host == HOST_OF.get(part.name, set())


@pytest.mark.parametrize("extra", sorted(set(PROJECT["optional-dependencies"]) - {"dev", "mutations"}))
def test_what_an_extra_asks_for_is_imported(extra):
    """By the parts that have the extra; by the rewards, if the data's extra asks for what the reward needs."""
    parts = [part for part, extras in EXTRAS_OF.items() if extra in extras]
    if extra == "data":
        parts.append("rewards")
    imports = set().union(*(imported(PACKAGE / part) for part in parts))
    assert asked_for(extra) - NOT_IMPORTED - imports == set()


def test_what_the_base_package_asks_for_is_imported():
    assert BASE - imported(PACKAGE) == set()
