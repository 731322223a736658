"""CW-GRPO for verl: ``pip install`` this package and set ``algorithm.adv_estimator=cw_grpo``.

Importing the package registers everything; verl does so itself, in each of its processes, through the entry point in
the group ``verl.plugins`` (or ``VERL_USE_EXTERNAL_MODULES=cw_plugin``, or both). Nothing heavy is imported here: what
needs verl waits until verl imports the module concerned.
"""

import sys

__version__ = "0.1.0"


def _register() -> None:
    from cw_plugin import cpu
    from cw_plugin.verl_integration import hooks

    hooks.install_when_imported()
    if cpu.requested():
        cpu.activate()


try:
    _register()
except Exception as error:
    # verl logs a failing plugin at debug level and goes on without it, so the cause is said here.
    print(f"cw_plugin {__version__} could not register with verl: {type(error).__name__}: {error}", file=sys.stderr)
    raise
