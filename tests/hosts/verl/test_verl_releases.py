"""Earlier releases of verl, as their wheels bring them, pass the tests of what the plugin does inside verl.

The doctor finds no fault in a plain run of theirs.
"""

import pytest

pytest.importorskip("verl")

from interpreter import run_tests


@pytest.mark.parametrize("version", ["0.7.1", *(pytest.param(v, marks=pytest.mark.slow) for v in ("0.8.0", "0.9.0"))])
def test_a_release_of_verl_passes_the_tests(version, packages):
    """Up to 0.8 verl knows no entry points."""
    external = {"VERL_USE_EXTERNAL_MODULES": "cw_plugin.hosts.verl.register"}
    tests = [f"hosts/verl/test_verl_{of}.py" for of in ("advantages", "loss", "settings")]
    doctor = "lab/doctor/test_doctor.py::test_a_plain_run_gets_no_finding"
    run_tests(*tests, doctor, path=(packages(f"verl=={version}"),), **external)
