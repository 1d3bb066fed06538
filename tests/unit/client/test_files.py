"""The files that paths name, and how they are opened."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pagantic_common.client.sources.files import find_files
from pagantic_common.client.sources.upload import upload_files
from pagantic_common.domain.errors import DeadlineExceeded
from tests.support.killing import wait_until


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


async def test_a_file_that_opens_after_its_upload_was_given_up_is_closed(tmp_path):
    """A pipe opens only when it has a writer, which learns that nobody reads."""
    os.mkfifo(tmp_path / "pipe")

    async def call(requests):
        async for _ in requests:
            pass
        yield  # A generator has one.

    with pytest.raises(DeadlineExceeded):
        await upload_files(call, "docs", [tmp_path / "pipe"], timeout_s=0.05)
    writer = os.open(tmp_path / "pipe", os.O_WRONLY)
    try:
        await asyncio.to_thread(wait_until, lambda: not has_reader(writer), "the file is closed")
    finally:
        os.close(writer)


def has_reader(writer: int) -> bool:
    try:
        os.write(writer, b"x")
    except BrokenPipeError:
        return False
    return True
