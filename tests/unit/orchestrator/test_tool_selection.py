"""Of more tools than fit, those are offered that a request is about."""

from pagantic_common.domain.messages import Message, Role, ToolCall, ToolDefinition
from services.orchestrator.core.tools.policy import called_names, fit_together, query_of, select, size_bytes

TOOLS = tuple(ToolDefinition(name, "é" * 10, "{}") for name in ("a", "b", "c", "d"))
SIZE = 1 + 20 + 2


def test_a_tool_counts_in_bytes():
    assert [size_bytes(tool) for tool in TOOLS] == [SIZE] * 4
    assert fit_together(TOOLS, 4 * SIZE)
    assert not fit_together(TOOLS, 4 * SIZE - 1)
    assert fit_together(TOOLS, 0), "0 is no limit"


def test_the_preferred_tools_that_fit_are_taken_in_the_order_of_the_list():
    def chosen(preferred, count):
        return [tool.name for tool in select(TOOLS, preferred, count * SIZE)]

    assert chosen(["d", "x", "", "b", "a"], 2) == ["b", "d"]
    assert chosen([], 2) == []
    assert chosen(["c", "a"], 0) == ["c"], "the first one in any case"


def test_the_query_is_what_the_user_said_last_and_calls_count_from_the_last():
    said = [Message(Role.USER, content=text) for text in ("one", "two", "three", "four")]
    calls = [ToolCall("1", "a", "{}"), ToolCall("2", "b", "{}")]
    said.insert(1, Message(Role.ASSISTANT, tool_calls=tuple(calls)))
    said.insert(3, Message(Role.ASSISTANT, tool_calls=(ToolCall("3", "a", "{}"),)))
    assert query_of(said) == "two\nthree\nfour"
    assert called_names(said) == ["a", "b"]
