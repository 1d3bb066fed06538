"""The files that paths name, before any of them is sent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagantic_common.client.sources.files import find_files


@pytest.mark.parametrize("path", ["./", Path("docs")])
def test_one_path_is_not_taken_for_its_letters(path):
    with pytest.raises(TypeError, match=r"paths is the path '.*': it must be a list of paths"):
        find_files(path)


def test_a_pipe_is_refused_before_it_is_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"neither a file nor a folder.*pipe"):
        find_files([tmp_path / "pipe"])


def test_a_folder_that_cannot_be_read_is_told(tmp_path):
    """A path that is longer than the system allows cannot be read by anybody, and can be made from folder to folder."""
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("x" * 250, dir_fd=folder)
        inner = os.open("x" * 250, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    with pytest.raises(OSError, match="File name too long"):
        find_files([tmp_path])
