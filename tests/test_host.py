"""What the plugin says of a host that does not have what it needs."""

import re

import pytest

from cw_plugin.errors import HostError
from cw_plugin.hosts.host import OPENRLHF, TRL, Host, Need

HOST = Host("Tester", "pytest", oldest="1.0", newest="2.0")


class Trainer:
    def compute(self, batch, metrics, _of_ray=None):
        return batch  # as it is

    def passes_on(self, *args, **kwargs):
        return self.compute(*args, **kwargs)


def test_a_host_that_has_what_is_needed_passes():
    HOST.require(
        Need(__name__, "Trainer.compute", ("batch",)),
        Need(__name__, "Trainer.compute", ("self", "batch", "metrics"), exactly=True),
        Need(__name__, "Trainer.compute", line="return batch"),
        Need(__name__, "Trainer.passes_on", ("batch",)),
        Need("json", "JSONDecoder.decode", ("s",)),
        Need("types", "new_class"),
    )


@pytest.mark.parametrize(
    ("need", "said"),
    [
        (Need(__name__, "Trainer.train"), f"there is no {__name__}.Trainer.train"),
        (Need("json", "JSONDecoder.read"), "there is no json.JSONDecoder.read"),
        (Need("json", "__name__"), "there is no json.__name__"),
        (Need("json.no_such_module", "read"), "there is no json.no_such_module"),
        (Need("no_such_package.module", "read"), "there is no no_such_package.module"),
        (Need(__name__, "Trainer.compute", ("step", "batch", "epoch")), "compute has no parameter step or epoch"),
        (Need(__name__, "Trainer.compute", ("self", "batch"), exactly=True), "parameters self, batch, metrics, not"),
        (Need(__name__, "Trainer.compute", ("batch", "self", "metrics"), exactly=True), "metrics, not batch, self"),
        (Need(__name__, "Trainer.compute", line="return 2"), "Trainer.compute has no `return 2`"),
    ],
)
def test_what_is_missing_is_said_with_the_releases_that_have_it(need, said):
    because = f"because .*{re.escape(said)}.*, and there is no json.gone"
    with pytest.raises(HostError, match=f"does not fit Tester {pytest.__version__}, {because}") as raised:
        HOST.require(need, Need("json", "gone"))
    assert raised.value.fix == "install pytest 1.0 to 2.0"


def test_a_module_that_lacks_a_package_of_its_own_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "of_host.py").write_text("import a_package_that_is_not_installed")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_installed"):
        HOST.require(Need("of_host", "train"))


def test_a_host_that_is_not_installed_is_named():
    nowhere = Host("Nowhere", "no-such-package", oldest="3.1", newest="3.1")
    assert str(nowhere.misfit("it is not there")) == (
        "cw_plugin does not fit this Nowhere, because it is not there; install no-such-package 3.1"
    )
    assert OPENRLHF.tested == f"{OPENRLHF.oldest} to {OPENRLHF.newest}"
    assert TRL.misfit("it is not there").fix == f"install trl {TRL.oldest} to {TRL.newest}, but not 1.15"
