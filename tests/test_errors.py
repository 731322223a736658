"""Every error of the package: one home, and nothing lost on the way out of another process."""

import pickle
import re
from pathlib import Path

import pytest

import cw_plugin
from cw_plugin.errors import CWGRPOError, NonFiniteError, first_line
from cw_plugin.lab.errors import how_to_install

EXAMPLES = [
    NonFiniteError("log_probs", [3, 17], " Look at the actor."),
    *(cls("x is 3", fix="set x=4") for cls in CWGRPOError.__subclasses__() if cls is not NonFiniteError),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_pickle_and_ray_keep_message_and_attributes(error):
    error.where = "set later"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error) and copy.args == error.args
    assert vars(copy) == vars(error) and copy.where == "set later"
    assert str(copy) == (f"{copy.problem}; {copy.fix}" if copy.fix else copy.problem)

    # What ray.get raises: the worker's error, pickled, as an instance of its class too.
    cloudpickle = pytest.importorskip("ray.cloudpickle", reason="needs Ray")
    from ray.exceptions import RayTaskError

    raised = cloudpickle.loads(cloudpickle.dumps(RayTaskError("fail", "its traceback", error))).as_instanceof_cause()
    assert isinstance(raised, type(error)) and type(raised.cause) is type(error) and str(raised.cause) == str(error)
    assert all(getattr(raised, name) == value for name, value in vars(error).items())


def test_of_many_rows_twenty_are_named():
    twenty = "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19"
    assert f" 20 row(s): {twenty}. It" in str(NonFiniteError("log_probs", list(range(20))))
    assert f" 21 row(s): {twenty}, .... It" in str(NonFiniteError("log_probs", list(range(21))))


def test_of_another_packages_error_the_first_line_is_kept():
    assert first_line(RuntimeError("\nno such column\nin a.parquet")) == "no such column"
    assert first_line(MemoryError()) == "MemoryError"


def test_advice_to_install_and_errors_have_one_home():
    """cw-plugin is on no index, so that "pip install cw-plugin" would fetch whatever a stranger puts there."""
    wheel = f"./cw_plugin-{cw_plugin.__version__}-py3-none-any.whl"
    assert how_to_install("data") == f'pip install ".[data]" in a clone of cw_plugin, or pip install "{wheel}[data]"'
    elsewhere = re.compile(r"cw-plugin\[|^class (?!_)\w+\((.*, )?(\w*Error|Exception)\b", re.MULTILINE)
    sources = (path for path in Path(cw_plugin.__file__).parent.rglob("*.py") if path.name != "errors.py")
    assert [str(path) for path in sources if elsewhere.search(path.read_text(encoding="utf-8"))] == []
