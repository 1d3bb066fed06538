"""The tools of a server's list that satisfy the protocol, and the bounds of reading it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types.methods import parse_server_result

from services.tools.adapters.mcp import tool_listing
from services.tools.adapters.mcp.tool_listing import MAX_BROKEN, MAX_LIST_BYTES, MAX_REASONS, ToolListing

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


def listing(version="2025-11-25", max_tools=128, max_tool_bytes=32_768):
    return ToolListing(version, max_tools, max_tool_bytes)


def sift(listed, version, **limits):
    """Return the tools that one page keeps, and those that it leaves out."""
    made = listing(version, **limits)
    fitting = asyncio.run(tool_listing.sift(listed, made))
    return fitting, made.pop_left_out()


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


def test_a_large_tool_is_left_out_without_being_validated(monkeypatch):
    monkeypatch.setattr(tool_listing, "parse_server_result", None)
    _, (left_out,) = sift([{"name": "a", "inputSchema": SCHEMA, "icons": [{}] * 20_000}], "2025-11-25")
    assert "has 60091 bytes, at most 32768 are taken: shorten its schema" in left_out.defect


def test_many_wrong_places_are_counted_and_some_are_named():
    tools = [{"name": "a", "inputSchema": SCHEMA, "icons": [{}] * count} for count in (8, 1000)]
    _, (few, many) = sift(tools, "2025-11-25")
    assert few.defect.endswith(": icons.0, icons.1, icons.2, icons.3, icons.4 and 3 more")
    assert many.defect.endswith(": 1000 places")


def test_others_of_the_service_run_between_the_tools_of_a_page():
    async def count_steps():
        steps = 0
        sifting = asyncio.create_task(tool_listing.sift([{"name": "a"}] * 100, listing()))
        while not sifting.done():
            await asyncio.sleep(0)
            steps += 1
        return steps

    assert asyncio.run(count_steps()) >= 100


def test_reasons_are_bounded_and_the_rest_is_counted():
    made = listing(max_tools=2)
    for _ in range(MAX_REASONS + 5):
        assert not made.take({})
    assert len(made.pop_left_out()) == MAX_REASONS
    assert made.take({"name": "a", "inputSchema": SCHEMA})
    assert made.describe_others(has_more_pages=False) == {"and 5 more": "5 cannot be used, as others before them"}


def test_a_list_ends_where_it_has_enough_tools_or_too_many_broken_ones_or_too_many_bytes():
    good = {"name": "a", "inputSchema": SCHEMA}
    for entry, count, reason in (
        (good, 4, "more than 2 tools: raise MCP_MAX_TOOLS"),
        ({}, MAX_BROKEN, f"{MAX_BROKEN} of the tools"),
        (good | {"icons": [{}] * 10_000}, 18, "bytes: mend the server"),
        (good | {"icons": "x" * (MAX_LIST_BYTES // 4)}, 4, "bytes: make the server list less"),
    ):
        made = listing(max_tools=2)
        for _ in range(count):
            assert not made.end_reason
            made.take(entry)
        assert reason in made.end_reason
        made.skip(3)
        (others,) = made.describe_others(has_more_pages=True).items()
        assert others[0].endswith(" more, and those of further pages")
        assert made.end_reason in others[1]


def test_what_stands_beside_the_tools_counts_too():
    made = listing()
    made.take_rest({"tools": [], "_meta": "x" * MAX_LIST_BYTES})
    assert made.is_cut


def test_a_tool_that_cannot_be_written_as_json_is_left_out():
    fitting, (left_out,) = sift([{"name": "a", "inputSchema": SCHEMA | {"default": float("inf")}}], "2025-11-25")
    assert not fitting
    assert "number that JSON cannot have" in left_out.defect
