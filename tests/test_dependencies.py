"""pyproject.toml asks for what the package imports: the base package and each extra."""

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

# What a part imports beside the base package: by the extras that bring it, and by the host, whose packages pip must not
# replace. Without an extra, the method and its hosts are complete.
OF_HOST = {
    "method": {"torch"},
    "hosts/host.py": set(),
    "hosts/ray_workers.py": {"ray"},
    "hosts/transformers_trainer.py": {"torch", "transformers"},
    "hosts/verl": {"verl", "torch", "transferqueue", "omegaconf"},
    "hosts/trl": {"torch", "transformers", "trl", "accelerate"},
    "hosts/swift": {"torch", "ms-swift"},
    "hosts/openrlhf": {"openrlhf", "torch"},
    "hosts/skyrl": {"skyrl", "torch"},
    "hosts/trinity": {"trinity-rft", "torch", "transformers"},
    "lab/doctor": {"verl", "ray", "transformers", "datasets", "hydra-core", "omegaconf"},
    "lab/compose.py": {"hydra-core", "omegaconf", "pyyaml"},  # omegaconf itself asks for pyyaml
    "lab/cli.py": {"omegaconf"},
    "lab/evaluation": {"verl", "transformers"},
    "lab/rewards": {"transformers", "skyrl", "skyrl-gym", "ray"},  # of the tokenizer that verl or TRL passes; of SkyRL
    "lab/reports": {"tensorboard", "wandb"},  # where its files are there, with a message that says how to install it
}
EXTRA_OF = {
    "lab/data": "data",
    "lab/rewards": "reward",
    "lab/reports": "report",
    "lab/intervals.py": "report",
    "lab/configs.py": "report",  # which only reports, evaluation and the doctor import
    "lab/evaluation": "report",
}
NAMES = {
    "swift": "ms-swift",
    "ms_swift": "ms-swift",
    "trinity": "trinity-rft",
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


# The method as one part, which is all but hosts and laboratory; each host, and each part of the laboratory.
PARTS = {"method": [path for path in PACKAGE.iterdir() if path.name not in ("hosts", "lab", "__main__.py")]}
for path in sorted([*(PACKAGE / "hosts").iterdir(), *(PACKAGE / "lab").iterdir()]):
    if path.name != "__init__.py" and (path.suffix == ".py" or (path / "__init__.py").exists()):
        PARTS[f"{path.parent.name}/{path.name}"] = [path]


@pytest.mark.parametrize("part", PARTS)
def test_what_is_imported_is_asked_for(part):
    imports = set().union(*map(imported, PARTS[part]))
    extra = asked_for(EXTRA_OF[part]) if part in EXTRA_OF else set()
    assert imports - BASE - extra == OF_HOST.get(part, set())
