import pytest

from services.inference.core.answers.dialect import VERBATIM, Dialect
from services.inference.core.generation import ToolCallDelta
from tests.unit.inference.answers import (
    CALL,
    CLOCK,
    GENERIC,
    HERMES,
    LLAMA3,
    MISTRAL,
    NAMES,
    new_parser,
    parse,
    write,
)


def test_arguments_are_shown_character_by_character():
    parser = new_parser()
    opening, rest = CALL[: CALL.index("{", 1)], CALL[CALL.index("{", 1) :]
    assert parser.feed("<tool_call>" + opening) == []
    head, first = parser.feed(rest[0])
    assert head.tool_call == ToolCallDelta(0, "call-1", "clock")
    assert first.tool_call == ToolCallDelta(0, arguments_json="{")
    for char in rest[1:-1]:
        (piece,) = parser.feed(char)
        assert piece.tool_call == ToolCallDelta(0, arguments_json=char)
    assert parser.feed(rest[-1] + "</tool_call>") == parser.finish() == []
    assert [(call.name, call.arguments_json) for call in parser.calls] == CLOCK


def test_arguments_before_the_name_wait_for_it():
    parser = new_parser()
    assert parser.feed('{"arguments": {"a": 1}, "name": "maths"') == []
    assert [piece.tool_call for piece in parser.feed("}")] == [
        ToolCallDelta(0, "call-1", "maths"),
        ToolCallDelta(0, arguments_json='{"a": 1}'),
    ]


@pytest.mark.parametrize(
    ("dialect", "marker"),
    [(HERMES, "<tool_call>"), (LLAMA3, "<|python_tag|>"), (LLAMA3, "<function="), (MISTRAL, "[TOOL_CALLS]")],
)
def test_the_beginning_of_a_marker_is_held_back_until_it_is_none(dialect, marker):
    for size in range(1, len(marker) + 1):
        parser = new_parser(dialect)
        assert [piece.content for piece in parser.feed("Hi " + marker[:size])] == ["Hi "]
        assert [piece.content for piece in parser.feed("?")] == [marker[:size] + "?"]
        parser = new_parser(dialect)
        assert [piece.content for piece in parser.feed("Hi " + marker[:size])] == ["Hi "]
        assert [piece.content for piece in parser.finish()] == [marker[:size]]


def test_text_is_shown_as_it_comes():
    parser = new_parser()
    assert [[piece.content for piece in parser.feed(word)] for word in ("It", " is", " {1}")] == [
        ["It"],
        [" is"],
        [" {1}"],
    ]


@pytest.mark.parametrize("text", ["{", "[", "```", "<tool_call>", "[TOOL_CALLS]", "text <tool_call>"])
def test_without_tools_nothing_is_held_back(text):
    for dialect in (HERMES, MISTRAL):
        assert [piece.content for piece in new_parser(dialect, ()).feed(text)] == [text]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "other", "arguments": {}}',
        '<tool_call>{"name": "cloc", "arguments": {}}</tool_call>',
        '{"arguments": {}, "name": "clocks"}',
        "[TOOL_CALLS]other[ARGS]{}",
        "[TOOL_CALLS]cloc[ARGS]{}",
        "<function=clock?{}</function>",
        "<function=other>{}</function>",
        '{"name": "clock", "arguments": 3}',
        '{"name": "clock", "arguments": [{}]}',
        '{"name": "clock", "description": "Tells the time.", "parameters": {}}',
        '{"arguments": {"n": 1e999}, "name": "clock"}',
        '{"arguments": {"s": "\\ud800"}, "name": "clock"}',
        '{"arguments": {zone: 1}, "name": "clock"}',
        '{"name": "clock",}',
        '{"name": "clock"',
        '{"name": ["clock"], "arguments": {}}',
        '{"name": "clock", "name": "maths", "arguments": {}}',
        '{"arguments": {"a": 1}, "arguments": {"a": 2}, "name": "clock"}',
        '{"zone": "UTC"}',
        "{}",
        "[]",
        "[1, 2]",
        "<tool_call></tool_call>",
        "<tool_call>;</tool_call>",
        f"[, {CALL}]",
        "```\n```",
        "```python\nprint()\n```",
        "clock[ARGS]{}",
        f"The form is {CALL}",
        f"The form is ```json\n{CALL}\n```",
        f"<p>{CALL}</p>",
        " \n",
    ],
)
def test_what_is_no_call_of_an_offered_tool_is_an_answer(text):
    for dialect in (HERMES, LLAMA3, MISTRAL, GENERIC):
        answer = parse(list(text), dialect)
        assert (answer.content, answer.calls, answer.is_broken) == (text, (), False)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('{"name": "clock"}', "", [("clock", "{}")]),
        ('{"id": "a", "type": "function", "name": "clock", "arguments": {}, "x": [1]}', "", [("clock", "{}")]),
        ('[TOOL_CALLS]clock[CALL_ID]a1[ARGS]{"a":1}', "", [("clock", '{"a":1}')]),
        ('[TOOL_CALLS]clock{"a":1}', "", [("clock", '{"a":1}')]),
        ('{"name": "\\u0063lock", "arguments": {}}', "", [("clock", "{}")]),
        ('<tool_call>{"name": "clock", "arguments": {}</tool_call> done', " done", [("clock", "{}")]),
        ('<tool_call>{"name": "clock", "arguments": {}, "x" </tool_call>', ', "x" </tool_call>', [("clock", "{}")]),
        (f"\n\n{CALL};\n", "", CLOCK),
        (f"<tool_call>{CALL}</tool_", "", CLOCK),
        (f"```json\n{CALL}\n``` It is noon.", " It is noon.", CLOCK),
        (f"{CALL}\nIt is noon.", "\nIt is noon.", CLOCK),
        (f'{CALL}; {{"a": 1}}', '; {"a": 1}', CLOCK),
        (f'[{CALL}, {{"a": 1}}]', ', {"a": 1}]', CLOCK),
        (f"{CALL} and <tool_call>{CALL}</tool_call>", " and ", CLOCK * 2),
        (f"<tool_call><tool_call>{CALL}</tool_call></tool_call>", "</tool_call>", CLOCK),
    ],
)
def test_what_is_around_a_call(text, content, calls):
    answer = parse(list(text))
    assert (answer.content, answer.named, answer.is_broken) == (content, calls, False)


@pytest.mark.parametrize("args", ["{zone: 1}", '{"n": 1e999}', '{"s": "\\ud800"}', '{"a": [}'])
def test_a_call_whose_arguments_are_shown_and_are_no_json_is_broken_and_hides_the_rest(args):
    answer = parse(f"Hi <tool_call>{CALL}</tool_call><tool_call>{write('maths', args)}</tool_call> text")
    assert (answer.content, answer.named, answer.is_broken) == ("Hi ", CLOCK, True)
    assert [call.name for call in answer.shown_calls] == ["clock", "maths"]


@pytest.mark.parametrize(
    "text", ["", " ", "text", '{"name": "other", "arguments": {}}', f"<tool_call>{CALL}</tool_call>"]
)
def test_an_enforced_answer_without_a_call_is_broken_and_has_no_content(text):
    answer = parse(list(text), is_enforced=True)
    assert (answer.shown, answer.calls, answer.is_broken) == ([], (), True)


def test_an_enforced_call_is_read_where_the_prompt_has_opened_the_reasoning():
    answer = parse(f" {CALL} ", Dialect(is_in_reasoning=True), is_enforced=True)
    assert (answer.content, answer.reasoning, answer.named, answer.is_broken) == ("", "", CLOCK, False)


@pytest.mark.parametrize("names", [(), NAMES])
@pytest.mark.parametrize(
    ("text", "dialect", "reasoning", "content"),
    [
        ("<think>\na b\n\nc\n</think>\n\nyes", HERMES, "a b\n\nc", "yes"),
        ("\n<think></think>yes", HERMES, "", "yes"),
        ("a\n</think>\nyes</think>", Dialect(is_in_reasoning=True), "a", "yes</think>"),
        ("a < b </thin k </", Dialect(is_in_reasoning=True), "a < b </thin k </", ""),
        ("<think>never ended ", HERMES, "never ended", ""),
        ("say <think>a</think>", HERMES, "", "say <think>a</think>"),
        ("<think>a</think>", VERBATIM, "", "<think>a</think>"),
        ("[THINK]a[b[/THINK]yes", Dialect(reasoning=("[THINK]", "[/THINK]")), "a[b", "yes"),
        ("<thin", HERMES, "", "<thin"),
    ],
)
def test_reasoning_is_separated_with_and_without_tools(text, dialect, reasoning, content, names):
    for chunks in (text, list(text)):
        answer = parse(chunks, dialect, names)
        assert (answer.reasoning, answer.content, answer.calls) == (reasoning, content, ())


def test_a_call_within_reasoning_is_reasoning_and_one_after_it_a_call():
    answer = parse(f"<think>{CALL}</think>{CALL}")
    assert (answer.reasoning, answer.content, answer.named) == (CALL, "", CLOCK)


def test_a_model_may_reason_between_calls():
    answer = parse(f"<tool_call>{CALL}</tool_call>\n<think>hm</think>\n<tool_call>{CALL}</tool_call>")
    assert answer.shown == [
        [("call", 0), '{"zone": "UTC"}'],
        [("reasoning", 0), "hm"],
        [("call", 1), '{"zone": "UTC"}'],
    ]
