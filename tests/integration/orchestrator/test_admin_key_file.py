"""The operator's own keys."""

import os

import pytest

from pagantic_common.domain.calls.api_keys import make_key
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.adapters import admin_key_file
from services.orchestrator.adapters.admin_key_file import AdminKeyFile, read_admin_keys

FIRST, SECOND = make_key(os.urandom), make_key(os.urandom)


def write(path, *keys):
    path.write_text("".join(f"{key.text}\n" for key in keys))
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + len(keys)))  # clocks of files are coarse


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(admin_key_file, "LOOK_S", 0.0)
    return tmp_path / "keys"


def test_one_key_replaces_another_without_a_restart(path):
    write(path, FIRST)
    file = AdminKeyFile(path)
    assert file.keys().keys() == {FIRST.key_id}
    write(path, FIRST, SECOND)
    assert file.keys().keys() == {FIRST.key_id, SECOND.key_id}
    write(path, SECOND)
    (key,) = file.keys().values()
    assert (key.key_id, key.scopes, key.tenant) == (SECOND.key_id, frozenset(Scope), "default")


@pytest.mark.parametrize("text", ["", "nonsense\n", FIRST.text[:-1]])
def test_a_file_that_is_broken_later_leaves_the_keys_as_they_were(path, text):
    write(path, FIRST)
    file = AdminKeyFile(path)
    path.write_text(text)
    os.utime(path, ns=(1, 1))
    assert file.keys().keys() == {FIRST.key_id}
    path.unlink()
    assert file.keys().keys() == {FIRST.key_id}


def test_a_file_without_a_key_stops_the_start_and_its_text_is_not_told(path):
    with pytest.raises(InvalidRequest, match="cannot be read"):
        AdminKeyFile(path)
    path.write_text("my-secret-without-form")
    with pytest.raises(InvalidRequest, match="pagantic keys new") as caught:
        AdminKeyFile(path)
    assert "my-secret" not in str(caught.value)


def test_without_a_file_there_is_no_admin_key():
    assert read_admin_keys(None)() == {}
