from __future__ import annotations

import pytest
from pydantic import ValidationError

from services.tools.settings import ToolsSettings


def test_named_paths_and_hosts_are_read(tmp_path):
    settings = ToolsSettings(file_roots=f"docs={tmp_path}, b={tmp_path},", fetch_hosts="example.com, http://[::1]:8080")
    assert settings.file_roots == {"docs": tmp_path, "b": tmp_path}
    assert list(map(str, settings.fetch_hosts)) == ["https://example.com", "http://[::1]:8080"]


@pytest.mark.parametrize(
    ("setting", "value", "problem"),
    [
        ("file_roots", "docs", "is not name=path"),
        ("file_roots", "a b=/", "is not name=path"),
        ("file_roots", "a=/,a=/", "stands twice"),
        ("file_roots", "a=/no/such/folder", "is not a folder"),
        ("sql_databases", "a=/", "is not a file"),
        ("fetch_hosts", "a b", "is not a host"),
    ],
)
def test_a_wrong_setting_says_what_is_wrong(setting, value, problem):
    with pytest.raises(ValidationError, match=problem):
        ToolsSettings(**{setting: value})


def test_one_name_is_one_folder(tmp_path):
    with pytest.raises(ValidationError, match="rename one"):
        ToolsSettings(file_roots=f"a={tmp_path}", writable_roots="a=/")
