"""The numbers are those of the invariants in services.inference.core.answers.answer."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.inference.core.answers.dialect import VERBATIM, Dialect
from tests.support.examples import examples
from tests.unit.inference.answers import (
    AT_START,
    CALL,
    GENERIC,
    HERMES,
    IN_TEXT,
    LLAMA3,
    MISTRAL,
    NAMES,
    cut,
    parse,
    write,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
arguments = st.builds(
    json.dumps,
    st.dictionaries(st.text(max_size=6) | st.sampled_from(['"}', "</tool_call>", "name"]), values, max_size=3),
    ensure_ascii=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
calls_written = st.lists(st.tuples(st.sampled_from(NAMES), arguments), min_size=1, max_size=3)
prose = st.text("ab \n.é<[|/", max_size=12).map("a".__add__)
thoughts = st.none() | st.text("ab \n<{", max_size=12).map(lambda text: f"a{text}b")
sizes = st.lists(st.integers(0, 7), max_size=40)


@pytest.mark.parametrize("form", [*IN_TEXT, *AT_START])
@settings(max_examples=examples(30))
@given(calls=calls_written, thought=thoughts, sizes=sizes)
def test_calls_are_read_in_every_form_with_their_arguments_as_written(form, calls, thought, sizes):
    dialect, write_calls = (IN_TEXT | AT_START)[form]
    text = ("" if thought is None else f"<think>\n{thought}\n</think>\n\n") + write_calls(calls)
    answer = parse(cut(text, sizes), dialect)
    assert (answer.content, answer.reasoning, answer.named) == ("", thought or "", calls)
    assert answer.shown_calls == answer.calls  # 4
    assert [call.id for call in answer.calls] == [f"call-{n}" for n in range(1, len(calls) + 1)]
    assert not answer.is_broken


@pytest.mark.parametrize("form", IN_TEXT)
@settings(max_examples=examples(30))
@given(before=prose, calls=calls_written, sizes=sizes)
def test_text_before_a_call_in_the_models_own_form_is_content(form, before, calls, sizes):
    dialect, write_calls = IN_TEXT[form]
    answer = parse(cut(before + write_calls(calls), sizes), dialect)
    assert (answer.content, answer.named) == (before, calls)
    assert answer.shown[0] == [("content", 0), before]


FRAGMENTS = [
    *(
        '{"name": "',
        'clock", ',
        "clock",
        '"arguments": {',
        '"parameters":',
        '"id": "1"',
        "}",
        "}}",
        "{",
        "[",
        "]",
        ",",
        ";",
    ),
    *("<tool_call>", "</tool_call>", "<tool", "<function=", "</function>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]x"),
    *("<|python_tag|>", "```", "```json\n", " ", "\n", '"', "\\", "text", CALL, f"<tool_call>{CALL}</tool_call>"),
]
soups = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)
thinking_soups = st.lists(st.sampled_from([*FRAGMENTS, "<think>", "</think>", "</thi"]), max_size=14).map("".join)
dialects = st.sampled_from([HERMES, LLAMA3, MISTRAL, GENERIC, Dialect(is_in_reasoning=True), VERBATIM])


@given(thinking_soups, dialects, sizes, st.booleans())
def test_1_what_is_shown_does_not_depend_on_how_the_text_was_cut(text, dialect, sizes, is_enforced):
    whole, *others = [parse(way, dialect, is_enforced=is_enforced) for way in ([text], list(text), cut(text, sizes))]
    for other in others:
        assert (other.shown, other.calls, other.is_broken) == (whole.shown, whole.calls, whole.is_broken)


@given(soups, dialects, sizes)
def test_2_the_content_is_the_text_where_no_tool_that_is_offered_is_called(text, dialect, sizes):
    plain = Dialect(dialect.tool_format)
    assert parse(cut(text, sizes), plain, ("maths",)).content == text
    assert parse(cut(text, sizes), plain, ()).content == text
    answer = parse(cut(text, sizes), plain)
    assert answer.content == text or answer.calls or answer.is_broken


@given(thinking_soups, dialects)
def test_4_what_is_shown_of_calls_is_the_calls(text, dialect):
    answer = parse(text, dialect)
    broken = answer.shown_calls[len(answer.calls) :]
    assert answer.shown_calls[: len(answer.calls)] == answer.calls
    assert len(broken) == answer.is_broken
    assert all(isinstance(json.loads(call.arguments_json), dict) for call in answer.calls)
    assert {call.name for call in answer.calls} <= set(NAMES)  # 5


@given(arguments, st.data(), st.booleans())
def test_a_call_that_is_cut_is_an_answer_before_its_arguments_open_and_broken_within_them(args, data, is_enforced):
    text = write("clock", args)
    size = data.draw(st.integers(0, len(text)))
    opens, closes = text.index(args) + 1, len(text) - 1
    answer = parse(text[:size], is_enforced=is_enforced)
    assert answer.content == ("" if is_enforced or size >= opens else text[:size])
    assert answer.named == ([("clock", args)] if size >= closes else [])
    assert answer.is_broken == (size < closes and (is_enforced or size >= opens))
