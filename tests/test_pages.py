"""What pages, scripts and workflows say of the code and of the hosts' releases is so: what was forgotten shows here."""

import re
import subprocess
from pathlib import Path

import pytest
from interpreter import ROOT

from cw_plugin.hosts import host
from cw_plugin.registry import BUILT_IN

HOSTS = [made for made in vars(host).values() if isinstance(made, host.Host)]
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
NOT_TEXT = {".csv", ".json", ".parquet", ".png", ".safetensors", ".svg"}
TEXTS = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in TRACKED
    if Path(name).suffix not in NOT_TEXT and (ROOT / name).is_file() and name != "CHANGELOG.md"
}
pytestmark = pytest.mark.skipif(not TEXTS, reason="git lists no files here")

RELEASE = r"\d+\.\d+(?:\.\d+)?(?!\.?\d)"
# Releases that a file names beside the oldest and the newest one that the tests run, by intent.
NAMED_ON_PURPOSE = {
    "cw_plugin/hosts/openrlhf/refused_settings.py": {"0.10.2"},  # which changed the names of arguments
    "cw_plugin/hosts/trl/trainer.py": {"1.14"},  # which has another forward pass
    "cw_plugin/hosts/verl/README.md": {"0.8", "0.9.0"},  # tested, too
    "cw_plugin/hosts/verl/hooks.py": {"0.8"},  # the last one without entry points
    "examples/gpu/README.md": {"0.8"},  # the last one for CUDA 12
    "examples/openrlhf/README.md": {"0.10.2"},
    "examples/trl/README.md": {"1.15"},  # does not train on a CPU
    "tests/hosts/openrlhf/test_openrlhf_releases.py": {"0.8.11"},  # does not fit
    "tests/hosts/trl/test_trl_releases.py": {"1.15", "1.14.1"},  # the last is what Axolotl pins
    "tests/tools/host_packages.py": {"0.29.1"},  # what ms-swift pins
}
# Names on our pages that are of hosts and other projects, and that no code here uses.
OF_OTHERS = {
    "MATH_PROMPT_TEMPLATE", "agg_loss", "dppo_kl", "dppo_tv", "kl_penalty_coef", "math_500", "partial_rollout",
    "token_mean", "trigger_parameter_sync_step", "use_liger_loss",
    "rl/train.py", "scripts/install_vllm_sglang_mcore.sh", "recipe/dapo/7b_clip_cov.sh",
}  # fmt: skip
NUMBERS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")


def releases_named(of: host.Host, text: str) -> set[str]:
    """The releases that a text names: ``verl 0.7.1 to 0.9.1``, ``verl[vllm]==0.9.1``, ``trl-1.16.0``."""
    name = rf"\b(?:{re.escape(of.name)}|{re.escape(of.package)})(?:\[[\w,-]+\])?"
    several = re.findall(rf"{name}[ =>`-]{{1,3}}({RELEASE}(?:(?:,| to| and| or) {RELEASE})*)", text)
    return {release for releases in several for release in re.findall(RELEASE, releases)}


@pytest.mark.parametrize("of", HOSTS, ids=lambda of: of.package)
def test_no_file_names_another_release_than_the_tests_run(of):
    """After a change of hosts/host.py, this names what else has the old release."""
    tested = {of.oldest, of.newest, of.newest.rpartition(".")[0]}
    forgotten = {
        name: other
        for name, text in TEXTS.items()
        if (other := releases_named(of, text) - tested - NAMED_ON_PURPOSE.get(name, set()))
    }
    assert not forgotten


def test_the_readme_names_the_releases_that_the_tests_run():
    named = [f"{of.name} {of.tested}" for of in HOSTS]
    named += [f"agent-lightning {host.AGENT_LIGHTNING}", f"Tinker cookbook {host.TINKER_COOKBOOK}"]
    assert [text for text in named if f"[{text}" not in TEXTS["README.md"]] == []


def test_the_page_of_verl_has_rows_for_the_oldest_and_the_newest_release():
    rows = re.findall(r"^\| ([\d., ]+) \|", TEXTS["cw_plugin/hosts/verl/README.md"], re.M)
    named = [release for row in rows for release in row.split(", ")]
    assert (named[0], named[-1]) == (host.VERL.newest, host.VERL.oldest)


def test_the_readme_counts_the_weightings():
    more = len(set(BUILT_IN) - {"gaussian", "none"})
    assert f"`gaussian` (default), `none`, {NUMBERS[more - 10]} more" in TEXTS["README.md"]


PAGES = {name: text for name, text in TEXTS.items() if name.endswith(".md") and not name.startswith("patches/")}
NO_CODE = (*PAGES, "tests/test_pages.py")
IN_CODE = {word for name, text in TEXTS.items() if name not in NO_CODE for word in re.findall(r"\w+", text)}
OF_FILES = {part for name in TRACKED for part in (Path(name).name, Path(name).stem)}


@pytest.mark.parametrize("page", PAGES)
def test_every_name_of_code_on_a_page_exists(page):
    """The pages of patches/ are about verl's code."""
    without_blocks = re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL)
    for span in re.findall(r"`([^`\n]+)`", without_blocks):
        name = re.fullmatch(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*\))?", span)
        looks_like_code = name and re.search(r"[._]|[a-z][A-Z]|[A-Z]{2}", name[1])
        if looks_like_code and not name[1].endswith("_"):
            unknown = set(name[1].split(".")) - IN_CODE - OF_FILES - OF_OTHERS
            assert not unknown, f"{page} names {span}, and no code here has {unknown}"
        if re.fullmatch(r"[\w./-]*/[\w.-]+\.(?:py|md|sh|toml|yml)", span) and span not in OF_OTHERS:
            path = re.sub(r"^(?:\.{1,2}/)+", "", span)
            assert any(f"/{tracked}".endswith(f"/{path}") for tracked in TRACKED), f"{page} names {span}"
    for module in re.findall(r"\bcw_plugin((?:\.[A-Za-z_]\w*)+)", PAGES[page]):
        unknown = set(module.strip(".").split(".")) - IN_CODE - OF_FILES
        assert not unknown, f"{page} names cw_plugin{module}"
