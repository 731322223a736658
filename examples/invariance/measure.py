"""One host's gradients in each case, in one of its processes; table.py starts it: measure.py HOST OUT ROWS OWN."""

import gc
import importlib
import os
import pkgutil
import re
import sys
import traceback
from typing import Any

import torch
from batches import CASES, SEEDS, NotOfferedError
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

GRADIENTS: list[torch.Tensor] = []  # one for each step of an optimizer, as it gets it


def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    found = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
    whole = [gradient.full_tensor() if isinstance(gradient, DTensor) else gradient for gradient in found]
    GRADIENTS.append(torch.cat([gradient.flatten() for gradient in whole]))


def main(host: str, out: str, pattern: str, own: str) -> None:
    rows = importlib.import_module(f"on_{host}").rows(pkgutil.resolve_name(own) if own else None)
    register_optimizer_step_pre_hook(keep)
    gc.freeze()  # all imports are done; transformers collects garbage whenever it begins to train
    found: dict[tuple[str, str, int], Any] = {}
    for row in filter(re.compile(pattern).search, rows):
        for case in [case for case in CASES if CASES[case].ranks == int(os.environ["WORLD_SIZE"])]:
            for seed in SEEDS:
                GRADIENTS.clear()
                torch.manual_seed(1000 * CASES[case].draw + seed)
                try:
                    result = rows[row](CASES[case], seed)
                    if result is None:  # and no advantages
                        (result,) = GRADIENTS  # an update is one step
                    found[row, case, seed] = result
                except NotOfferedError:
                    found[row, case, seed] = None
                except Exception as error:  # the host's, which the row then says
                    traceback.print_exc()
                    found[row, case, seed] = f"{type(error).__name__}: {error}".splitlines()[0]
    if os.environ["RANK"] == "0":
        torch.save(found, out)
    os._exit(0)  # gloo's threads abort the process now and then, if the group is taken down while they finish


if __name__ == "__main__":
    main(*sys.argv[1:])
