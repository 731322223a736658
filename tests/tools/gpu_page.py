"""The tables of examples/gpu/README.md, for the tests of each framework's recipe."""

from interpreter import ROOT

from cw_plugin.memory.stages import GIB, Estimate

NEEDS, FOR_48 = "| recipe | vLLM awake |", "| recipe | add |"
"""How the tables begin: what each recipe needs, and what to add on GPUs of 48 GB."""


def cells(recipe: str, table: str = NEEDS) -> list[str]:
    """The row of a recipe, without its name."""
    page = (ROOT / "examples" / "gpu" / "README.md").read_text()
    rows = page[page.index(table) :].split("\n\n")[0].splitlines()
    (row,) = [row for row in rows if row.startswith(f"| {recipe} |")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def totals(needs: Estimate) -> list[str]:
    """What each stage needs, as the page writes it."""
    return [f"{stage.total / GIB:.1f}" for stage in needs.stages]
