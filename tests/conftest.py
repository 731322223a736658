"""The shapes in cw_plugin's signatures are checked by whatever a test calls in its own process."""

import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis
import jaxtyping
import pytest

ROOT = Path(__file__).parent.parent
WITHIN_A_TEST = "PYTEST_CURRENT_TEST" in os.environ  # which runs this file's tests under another release

pytest.register_assert_rewrite("e2e", "openrlhf_experiences", "skyrl_trainers", "trainers", "trl_checks")
hypothesis.settings.register_profile("ours", deadline=None)  # no test asserts a time
hypothesis.settings.load_profile("ours")
# Before any test imports them. The other modules have no shapes; their types are mypy's.
jaxtyping.install_import_hook(
    [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in ROOT.glob("cw_plugin/**/*.py")
        if "from jaxtyping import" in path.read_text(encoding="utf-8")
    ],
    "shape_checks.check",
)


# Start first where tests run in two processes, one file at a time in each: the others are short.
LONGEST = (
    "test_e2e.py", "test_e2e_trainers.py", "test_trl_releases.py", "test_openrlhf_releases.py", "test_plugin.py",
    "test_engines.py", "test_verl_releases.py", "test_stop.py", "test_swift.py", "test_skyrl_releases.py",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory):
    """Ray's folders, vLLM's sockets and verl's locks lie in a folder that is removed, the quickstart's problems in one
    that all test processes share. The first is a short path, because a socket's path may have 107 characters. A Ray
    that somebody else has started on this machine is not joined."""
    own = tmp_path_factory.getbasetemp()  # pytest looks up the system's folder before it is another
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    data = os.environ["QUICKSTART_DATA"] if WITHIN_A_TEST else shared / "quickstart"
    with (
        tempfile.TemporaryDirectory(prefix="cw", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in ("TMPDIR", "RAY_TMPDIR", "VLLM_RPC_BASE_PATH"):
            patch.setenv(name, folder)
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_AUTH_MODE", "disabled")  # Ray would write a token to the home folder
        patch.setenv("RAY_worker_niceness", "0")  # else Ray's workers get what the tests beside them leave
        patch.setenv("QUICKSTART_DATA", str(data))
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="session")
def packages() -> Callable[..., Path]:
    """Installs packages that the environment does not have, and says where."""
    from host_packages import installed  # which imports modules that the hook above has to see first

    return installed


@pytest.fixture
def script(monkeypatch):
    """Imports a script of a study by its name, anew in each test."""
    study = ROOT / "examples" / "study"
    for folder in (study, study / "boundary", study / "sizes", study / "entropy", study / "league"):
        monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(study)):
            del sys.modules[name]
