"""What a contributor adds to the tests is run."""

from interpreter import ROOT, python


def test_two_new_files_of_one_name_are_both_collected(tmp_path):
    """In folders without an __init__.py, as those of the tests are."""
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test_host.py").write_text(f"def test_{folder}():\n    pass\n")
    result = python("-m", "pytest", "-v", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml", tmp_path)
    assert "::test_one PASSED" in result.stdout and "::test_other PASSED" in result.stdout, result.stdout
