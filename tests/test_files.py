"""Files that are complete or absent, and places on other machines."""

import os

import pytest

from cw_plugin.files import is_remote, write_whole


def write(part):
    """While it is written, no reader takes it for a result."""
    assert part.name.startswith(".step.parquet.") and part.name.endswith(".part")
    part.write_text("Größe\n", "utf-8")


@pytest.mark.parametrize("content", ["Größe\n", write])
def test_a_file_is_written_whole_and_in_place_of_another(content, tmp_path):
    path = tmp_path / "new" / "folder" / "step.parquet"
    for _ in range(2):
        write_whole(path, content)
        assert path.read_text("utf-8") == "Größe\n" and os.listdir(path.parent) == ["step.parquet"]


def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("before")

    def fail(part):
        part.write_text("half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        write_whole(path, fail)
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["file.txt"]


def test_a_place_on_another_machine_has_a_scheme():
    assert is_remote("hdfs://host/run") and is_remote("s3://bucket/run")
    assert not is_remote("runs/cw") and not is_remote("/runs/a:b//c") and not is_remote("~/run")
