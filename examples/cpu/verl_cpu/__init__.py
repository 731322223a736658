"""verl and vLLM without an accelerator, for learning and for tests. Active only with ``VERL_PLATFORM=cpu``.

verl imports this module in each of its processes, through the entry point in the group ``verl.plugins``. verl's own
platform registry does most of it (platform.py). The rest are the patches listed in patches.py, two variables of the
environment, and a threshold of the garbage collector, which :func:`activate` sets.
"""

import gc
import os
import sys

# Settings that verl and vLLM read from the environment of each process; a value set by the user stays.
ENVIRONMENT = {
    "VERL_ENGINE_DEVICE": "cuda",  # verl registers its FSDP engine for "cuda" and "npu" alone; this picks that class
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; vLLM would take a share of the machine's memory
}


def requested() -> bool:
    """Whether this process was started with ``VERL_PLATFORM=cpu``."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def activate() -> None:
    """Register the platform with verl and install the patches. Idempotent; called while verl is being imported."""
    from verl_cpu.patches import install_when_imported

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # A run starts a dozen processes, and each imports for ten seconds. The garbage collector, at its usual threshold,
    # would take a fifth of that to look at objects which all stay. Later this threshold only means rarer collections.
    gc.set_threshold(50_000)
    install_when_imported()


def vllm_plugin() -> None:
    """Entry point in the group ``vllm.general_plugins``: vLLM calls it in each of its processes."""
    if requested():
        from verl_cpu.patches import keep_vllm_weights_loadable

        keep_vllm_weights_loadable()


try:
    if requested():
        activate()
except Exception as error:
    # verl logs a failing plugin only at debug level, and goes on without it. So report the cause here.
    print(f"verl_cpu could not register with verl: {type(error).__name__}: {error}", file=sys.stderr)
    raise
