"""What every PrefixStore promises, held against the one in memory and against the folder; and what the folder adds."""

import os
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.testing.memory_prefix_store import MemoryPrefixStore
from services.inference.adapters.prompts import prefix_folder
from services.inference.adapters.prompts.prefix_folder import PrefixFolder

LIMIT = 1 << 20
CELLS = np.arange(1000, dtype=np.uint8)
HEADER = 40


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "prefixes" / "of this service"


@pytest.fixture(params=["memory", "folder"])
def store_of(request, folder):
    """Makes a store with room for so many blocks of 1000 cells."""
    if request.param == "memory":
        return lambda blocks: MemoryPrefixStore(blocks * 1000)
    return lambda blocks: PrefixFolder(folder, blocks * (1000 + HEADER))


def has(store, name):
    return store.read(name, LIMIT) is not None


def one_after_another(names, use):
    for name in names:
        use(name)
        time.sleep(0.01)  # the time of a file is that of the kernel's clock, which ticks


def test_a_block_comes_back_as_it_was_written(store_of):
    store = store_of(4)
    assert store.write("a", CELLS)
    assert store.write("b", CELLS[::-1].copy())
    assert store.read("a", LIMIT).tolist() == CELLS.tolist()
    assert store.read("b", LIMIT).tolist() == CELLS[::-1].tolist()
    assert store.write("a", CELLS)
    assert has(store, "a")


def test_a_block_that_is_not_there_is_nothing(store_of):
    store = store_of(4)
    assert store.read("a", LIMIT) is None
    assert not store.touch("a")


def test_a_block_that_is_larger_than_a_block_can_be_is_nothing(store_of):
    store = store_of(4)
    store.write("a", CELLS)
    assert store.read("a", 999) is None
    assert not store.touch("a")


def test_a_block_that_is_larger_than_the_store_is_not_kept(store_of):
    store = store_of(4)
    assert not store.write("a", np.zeros(5000, dtype=np.uint8))
    assert not has(store, "a")


@pytest.mark.parametrize("use", ["read", "touch"])
def test_the_least_recently_used_blocks_go(store_of, use):
    store = store_of(5)
    one_after_another("abcde", lambda name: store.write(name, CELLS))
    use_again = {"read": lambda name: store.read(name, LIMIT), "touch": store.touch}[use]
    one_after_another("cba", use_again)
    store.write("f", CELLS)
    assert has(store, "a")
    assert has(store, "b")
    assert has(store, "f")
    assert not has(store, "d")


def test_threads_may_use_it_at_the_same_time(store_of):
    store = store_of(8)
    failures = []

    def play(name):
        for _ in range(50):
            store.write(name, CELLS)
            cells = store.read(name, LIMIT)
            if cells is not None and cells.tolist() != CELLS.tolist():
                failures.append(name)

    threads = [threading.Thread(target=play, args=(name,)) for name in "aab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---- the folder


def sizes(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def test_a_service_finds_what_another_one_has_written(folder):
    PrefixFolder(folder, LIMIT).write("a", CELLS)
    assert has(PrefixFolder(folder, LIMIT), "a")


def test_its_files_are_their_users_alone(folder):
    PrefixFolder(folder, LIMIT).write("a", CELLS)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (path,) = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:10],
        lambda _data: b"",
        lambda data: data + b"x",
        lambda data: data[:500] + bytes([data[500] ^ 1]) + data[501:],
        lambda data: b"pagkv\0\0\2" + data[8:],
    ],
    ids=["cut", "cut in its header", "empty", "longer", "one bit", "another form"],
)
def test_a_damaged_file_is_nothing_and_is_deleted(folder, damage):
    store = PrefixFolder(folder, LIMIT)
    store.write("a", CELLS)
    (path,) = folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert not has(store, "a")
    assert list(folder.iterdir()) == []
    assert store.write("a", CELLS)
    assert has(store, "a")


def test_a_file_under_another_name_is_nothing(folder):
    store = PrefixFolder(folder, LIMIT)
    store.write("a", CELLS)
    (path,) = folder.iterdir()
    path.rename(path.with_stem("b"))
    assert not has(store, "b")


def test_the_bound_holds_after_every_write_and_at_the_start_of_a_service_with_a_lower_one(folder):
    store = PrefixFolder(folder, 10_000)
    for index in range(30):
        store.write(str(index), CELLS)
        assert sizes(folder) <= 10_000
    assert sizes(folder) > 7_000
    PrefixFolder(folder, 3_000)
    assert sizes(folder) <= 3_000


def test_services_that_write_to_one_folder_keep_its_bound_together(folder):
    stores = [PrefixFolder(folder, 64_000) for _ in range(3)]
    for index in range(300):
        stores[index % 3].write(str(index), CELLS)
        assert sizes(folder) <= 64_000 + 3 * (64_000 // 16 + 1040)


def test_files_that_another_service_deletes_meanwhile_are_no_failure(folder, monkeypatch):
    store = PrefixFolder(folder, 5_000)
    for index in range(4):
        store.write(str(index), CELLS)
    found = store._files()
    for file in found[:3]:
        file.path.unlink()
    monkeypatch.setattr(store, "_files", lambda: found)
    assert store.write("new", CELLS)
    assert has(store, "new")


def test_what_a_killed_writer_left_goes_after_a_minute(folder):
    PrefixFolder(folder, LIMIT)
    old, new = folder / ".new-old", folder / ".new-new"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (time.time() - 120, time.time() - 120))
    PrefixFolder(folder, LIMIT)
    assert [path.name for path in folder.iterdir()] == [new.name]


def test_a_folder_that_goes_away_loses_blocks_and_raises_nothing(folder):
    store = PrefixFolder(folder, LIMIT)
    store.write("a", CELLS)
    (path,) = folder.iterdir()
    path.unlink()
    folder.rmdir()
    assert not has(store, "a")
    assert not store.touch("a")
    assert not store.write("a", CELLS)


def test_a_full_disk_loses_the_block_and_leaves_no_part_of_it(folder, monkeypatch):
    store = PrefixFolder(folder, LIMIT)

    def fail(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    assert not store.write("a", CELLS)
    assert list(folder.iterdir()) == []


def test_what_is_no_file_is_nothing_and_is_not_in_the_way(folder):
    store = PrefixFolder(folder, 3_000)
    (folder / "a.cells").mkdir()
    assert not has(store, "a")
    for name in "bcdef":
        assert store.write(name, CELLS)
    assert has(store, "f")


def test_files_that_cannot_be_deleted_do_not_keep_the_others(folder, monkeypatch):
    store = PrefixFolder(folder, 5_000)
    one_after_another("abcd", lambda name: store.write(name, CELLS))
    unlink = Path.unlink

    def refuse(path, **options):
        if path.stem == "a":
            raise PermissionError(1, "Operation not permitted")
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert store.write("e", CELLS)
    assert has(store, "a")
    assert not has(store, "b")


def test_files_that_cannot_be_deleted_do_not_let_the_folder_grow(folder, monkeypatch):
    store = PrefixFolder(folder, 5_000)
    for name in "abcd":
        store.write(name, CELLS)

    def refuse(_path, **_options):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", refuse)
    for name in "efgh":
        assert not store.write(name, CELLS)
    assert sizes(folder) <= 5_000


def test_a_file_that_another_service_deletes_while_it_is_read_is_read(folder, monkeypatch):
    store = PrefixFolder(folder, LIMIT)
    store.write("a", CELLS)
    read = prefix_folder._read

    def read_and_lose(path, *given):
        cells = read(path, *given)
        path.unlink()
        return cells

    monkeypatch.setattr(prefix_folder, "_read", read_and_lose)
    assert has(store, "a")
    assert not has(store, "a")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(PreconditionFailed, match=r"file/x' cannot be written: Not a directory") as raised:
        PrefixFolder(tmp_path / "file" / "x", LIMIT)
    assert raised.value.code is ErrorCode.CONFIG_INVALID
