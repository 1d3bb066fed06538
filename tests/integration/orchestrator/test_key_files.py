"""The operator's own keys."""

import os
from pathlib import Path

import pytest

from pagantic_common.domain.calls.api_keys import make_key
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.rpc.access import watched_file
from services.orchestrator.adapters.access.key_files import read_admin_keys

FIRST, SECOND = make_key(os.urandom), make_key(os.urandom)


def write(path, *keys):
    path.write_text("".join(f"{key.text}\n" for key in keys))
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + len(keys)))  # clocks of files are coarse


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(watched_file, "LOOK_S", 0.0)
    return tmp_path / "keys"


def test_one_key_replaces_another_without_a_restart(path):
    write(path, FIRST)
    keys = read_admin_keys(path)
    assert keys().keys() == {FIRST.key_id}
    write(path, FIRST, SECOND)
    assert keys().keys() == {FIRST.key_id, SECOND.key_id}
    write(path, SECOND)
    (key,) = keys().values()
    assert (key.key_id, key.scopes, key.tenant) == (SECOND.key_id, frozenset(Scope), "default")


def test_a_key_that_is_removed_is_valid_no_more_whatever_else_is_in_the_file(path):
    write(path, FIRST)
    keys = read_admin_keys(path)
    path.write_text(f"nonsense\n{SECOND.text}\n")
    os.utime(path, ns=(1, 1))
    assert keys().keys() == {SECOND.key_id}
    path.write_text("")
    os.utime(path, ns=(2, 2))
    assert keys() == {}


def test_a_file_that_cannot_be_read_for_now_leaves_the_keys_as_they_were(path):
    write(path, FIRST)
    keys = read_admin_keys(path)
    path.unlink()
    assert keys().keys() == {FIRST.key_id}


def test_a_key_in_the_place_of_its_path_is_not_shown():
    with pytest.raises(InvalidRequest, match="not a path") as caught:
        read_admin_keys(Path(FIRST.text))
    assert FIRST.secret not in str(caught.value)


def test_a_file_without_a_key_stops_the_start_and_its_text_is_not_told(path):
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_admin_keys(path)
    path.write_text("my-secret-without-form")
    with pytest.raises(InvalidRequest, match="pagantic keys new") as caught:
        read_admin_keys(path)
    assert "my-secret" not in str(caught.value)


def test_without_a_file_there_is_no_admin_key():
    assert read_admin_keys(None)() == {}
