from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.messages import ToolFailed
from services.tools.core.builtin.file_paths import is_folder_name, split_path


def test_a_path_is_split_into_names():
    assert split_path("docs//a/./b.txt/") == ("docs", "a", "b.txt")


@given(st.text())
def test_no_name_of_a_path_leads_up_or_is_special(path):
    try:
        names = split_path(path)
    except ToolFailed:
        return
    assert names
    assert not {"", ".", ".."} & set(names)
    assert not any("/" in name or "\0" in name or "\\" in name for name in names)
    assert split_path("/".join(names)) == names


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a b", "a" * 65, "ü"])
def test_a_folder_has_a_plain_name(name):
    assert not is_folder_name(name)
    assert is_folder_name("docs-2.old_1")
