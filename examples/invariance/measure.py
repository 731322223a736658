"""One host's gradients in each case, in one of its processes; table.py starts it: measure.py HOST OUT ROWS OWN."""

import gc
import importlib
import os
import re
import sys
import traceback
from pathlib import Path

import torch
from batches import CASES, SEEDS


def main(host: str, out: str, pattern: str, own: str) -> None:
    module, _, name = own.partition(":")
    rows = importlib.import_module(f"on_{host}").rows(getattr(importlib.import_module(module), name) if own else None)
    ranks, found = int(os.environ["WORLD_SIZE"]), {}
    for row in [row for row in rows if re.search(pattern, row)]:
        for case, cut in CASES.items():
            for seed in SEEDS if cut.ranks == ranks else ():
                try:
                    found[row, case, seed] = rows[row](cut, seed)
                except Exception as error:  # the host's, which the row then says
                    traceback.print_exc()
                    found[row, case, seed] = f"{type(error).__name__}: {error}".splitlines()[0]
                if len(found) == 1:
                    gc.freeze()  # all imports are done; transformers collects garbage whenever it begins to train
    if os.environ["RANK"] == "0":
        torch.save(found, Path(out) / f"{ranks}.pt")
    os._exit(0)  # gloo's threads abort the process now and then, if the group is taken down while they finish


if __name__ == "__main__":
    main(*sys.argv[1:])
