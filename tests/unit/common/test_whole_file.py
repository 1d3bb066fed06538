"""A file is written whole or not at all."""

import pytest

from pagantic_common.storage.whole_file import write_parts


def test_the_parts_are_one_file_that_its_user_alone_can_read(tmp_path):
    write_parts(tmp_path / "a", [b"one ", memoryview(b"two")], prefix=".new-")
    assert (tmp_path / "a").read_bytes() == b"one two"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_a_part_that_cannot_be_had_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path):
    (tmp_path / "a").write_text("before")

    def parts():
        yield b"half"
        assert [path.name[:5] for path in tmp_path.iterdir() if path.name != "a"] == [".new-"]
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        write_parts(tmp_path / "a", parts(), prefix=".new-")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "before")]


def test_no_folder_is_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_parts(tmp_path / "gone" / "a", [b"x"])
