"""Tools are found by the words of their names, descriptions and parameters."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.messages import ToolDefinition
from services.tools.core.tool_search import ToolIndex


def tool(name, description="", **properties):
    return ToolDefinition(name, description, json.dumps({"type": "object", "properties": properties}))


TOOLS = [
    tool("get_weather", "Tells the forecast of a city."),
    tool("createGitIssue", "Opens a ticket."),
    tool("mail", "Sends a message.", to={"type": "array", "items": {"description": "an electronic address"}}),
    ToolDefinition("odd", "Has parameters that are no JSON, and a word: zebra.", "{"),
]


def names(query, limit=5, wanted=lambda _: True):
    return [name for name, _ in ToolIndex(TOOLS).search(query, wanted, limit)]


def test_words_of_names_descriptions_and_parameters_are_found():
    assert names("what is the weather?") == ["get_weather"]
    assert names("please make a git issue")[0] == "createGitIssue"
    assert names("electronic") == ["mail"]
    assert names("zebra") == ["odd"]
    assert names("nothing alike") == []


def test_only_wanted_tools_are_found_best_first_and_no_more_than_asked():
    assert names("weather forecast or a message", limit=1) == ["get_weather"]
    assert names("weather forecast or a message", wanted=lambda name: name == "mail") == ["mail"]


@given(
    st.lists(st.tuples(st.text(max_size=20), st.text(max_size=40)), max_size=6, unique_by=lambda one: one[0]), st.text()
)
def test_any_tools_and_any_words_are_searched(texts, query):
    index = ToolIndex([tool(name, description) for name, description in texts])
    found = index.search(query, lambda _: True, 3)
    assert len(found) <= 3
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert all(score > 0 for _, score in found)
