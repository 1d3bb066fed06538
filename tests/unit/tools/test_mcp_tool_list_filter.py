"""Which tools of a server's list satisfy the protocol."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types.methods import parse_server_result

from services.tools.adapters.mcp.tool_list_filter import sift

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
PAGE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
schemas = (
    st.just(SCHEMA)
    | st.fixed_dictionaries(
        {"type": st.just("object") | values}, optional={"properties": values, "x-mcp-header": values}
    )
    | values
)
fields = ("description", "title", "annotations", "outputSchema", "icons", "execution", "_meta")
tools = values | st.fixed_dictionaries(
    {"name": st.text(max_size=8) | values, "inputSchema": schemas}, optional=dict.fromkeys(fields, values)
)


@pytest.mark.parametrize("version", VERSIONS)
@given(listed=st.lists(tools, max_size=5))
def test_what_is_kept_is_a_list_of_the_protocol_and_what_is_not_has_a_reason(version, listed):
    fitting, left_out = sift(listed, version)
    assert len(fitting) + len(left_out) == len(listed)
    assert [tool for tool in listed if any(tool is kept for kept in fitting)] == fitting
    parsed = parse_server_result("tools/list", version, {**PAGE, "tools": fitting})
    assert len(parsed.tools) == len(fitting)
    for tool in left_out:
        assert tool.name
        assert 0 < len(tool.defect) <= 500
        assert tool.defect.isprintable()


@pytest.mark.parametrize("version", VERSIONS)
@given(place=st.integers(0, 2), wrong=tools)
def test_a_tool_does_not_take_others_with_it(version, place, wrong):
    good = [{"name": "first", "inputSchema": SCHEMA}, {"name": "second", "inputSchema": SCHEMA}]
    fitting, _ = sift([*good[:place], wrong, *good[place:]], version)
    assert [tool for tool in fitting if tool is not wrong] == good


def test_the_newest_version_also_wants_headers_that_can_be_sent():
    schema = {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "two words"}}}
    tool = {"name": "a", "inputSchema": schema}
    assert sift([tool], "2025-11-25") == ([tool], [])
    fitting, (left_out,) = sift([tool], "2026-07-28")
    assert not fitting
    assert "x-mcp-header 'two words'" in left_out.defect
