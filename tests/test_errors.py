"""Every error of the package: one home, and nothing lost on the way out of another process."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from pathlib import Path

import pytest

import cw_plugin
from cw_plugin import errors
from cw_plugin.errors import CWGRPOError, NonFiniteError, how_to_install

ARGUMENTS = {NonFiniteError: ("log_probs", [3, 17], " Look at the actor.")}  # others take a message
# vLLM's and Megatron's own processes; TRL and ms-swift, which are not in this environment
NEEDS_MORE = ("cpu.platform", "cpu.megatron", "trl_integration", "swift_integration")


def package_classes() -> set[type]:
    """Every exception class that a module of the package defines."""
    for module in pkgutil.walk_packages(cw_plugin.__path__, "cw_plugin."):
        if not any(name in module.name for name in (*NEEDS_MORE, "__main__")):
            importlib.import_module(module.name)

    def below(cls: type) -> set[type]:
        return {cls, *(found for sub in type.__subclasses__(cls) for found in below(sub))}

    return {cls for cls in below(Exception) if cls.__module__.startswith("cw_plugin.")}


def subclasses(cls: type = CWGRPOError) -> list[type]:
    return [cls, *(found for sub in cls.__subclasses__() for found in subclasses(sub))]


def example(cls: type) -> CWGRPOError:
    return cls(*ARGUMENTS.get(cls, ("x is 3, and must be 4",)))


def test_all_error_classes_live_in_one_module():
    found = package_classes()
    assert found == set(subclasses()) and len(found) == 6
    assert {cls.__module__ for cls in found} == {"cw_plugin.errors"}


@pytest.mark.parametrize("cls", subclasses())
def test_pickle_keeps_message_and_attributes(cls):
    error = example(cls)
    error.where = "set later"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls and str(copy) == str(error) and copy.args == error.args
    assert vars(copy) == vars(error) and copy.where == "set later"


def test_a_class_whose_arguments_are_not_its_message_is_pickled_too():
    """What NonFiniteError was not; a class that is written tomorrow needs nothing of its own."""

    class Tomorrow(CWGRPOError):
        def __init__(self, rows: list[int], *, step: int):
            self.rows, self.step = rows, step
            super().__init__(f"{len(rows)} rows in step {step}")

    errors.Tomorrow = Tomorrow
    Tomorrow.__module__, Tomorrow.__qualname__ = "cw_plugin.errors", "Tomorrow"
    try:
        copy = pickle.loads(pickle.dumps(Tomorrow([1, 2], step=7)))
    finally:
        del errors.Tomorrow
    assert (str(copy), copy.rows, copy.step) == ("2 rows in step 7", [1, 2], 7)


def test_a_ray_actor_hands_every_error_over_whole():
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="error", log_to_driver=False)
    try:

        @ray.remote
        class Actor:
            def fail(self, cls: type, arguments: tuple) -> None:
                raise cls(*arguments)

        actor = Actor.remote()
        for cls in subclasses():
            error = example(cls)
            with pytest.raises(cls) as caught:
                ray.get(actor.fail.remote(cls, ARGUMENTS.get(cls, error.args)))
            assert str(error) in str(caught.value)  # with the actor's traceback around it
            assert type(caught.value.cause) is cls and str(caught.value.cause) == str(error)
            for name, value in vars(error).items():
                assert getattr(caught.value, name) == value
    finally:
        ray.shutdown()


def test_advice_to_install_names_no_package_that_an_index_could_lack():
    """cw-plugin is on no index, so that "pip install cw-plugin" would fetch whatever a stranger puts there."""
    wheel = f"./cw_plugin-{cw_plugin.__version__}-py3-none-any.whl"
    assert how_to_install("data") == f'pip install ".[data]" in a clone of cw_plugin, or pip install "{wheel}[data]"'
    sources = Path(cw_plugin.__file__).parent.rglob("*.py")
    assert [str(path) for path in sources if "cw-plugin[" in path.read_text(encoding="utf-8")] == []
