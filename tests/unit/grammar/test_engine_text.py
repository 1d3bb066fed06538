import json
import time

import pytest
from llguidance import LLMatcher

from pagantic_common.grammar.engine_text import (
    GrammarError,
    GrammarTooComplexError,
    byte_tokenizer,
    check_engine_text,
    engine_text_of_gbnf,
    engine_text_of_regex,
    engine_text_of_schema,
    engine_text_of_values,
    find_beginnings,
    has_pattern,
    start_matcher,
    start_ready_matcher,
)


def accepts(engine_text: str, text: str) -> bool:
    matcher = LLMatcher(byte_tokenizer(), engine_text, log_level=0)
    tokens = list(text.encode())
    return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()


def test_schema_allows_only_fixed_separators():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "required": ["a", "b"]}
    text = engine_text_of_schema(json.dumps(schema | {"x-guidance": {"whitespace_flexible": True}}))
    assert accepts(text, '{"a": 1, "b": null}')
    assert not accepts(text, '{"a": 1,    "b": null}')


@pytest.mark.parametrize("schema", ["{", "[]", "1", "[" * 100_000])
def test_text_that_is_no_schema_is_refused(schema):
    with pytest.raises(GrammarError):
        engine_text_of_schema(schema)


def test_true_allows_anything_and_false_nothing():
    check_engine_text(engine_text_of_schema("true"))
    with pytest.raises(GrammarError):
        check_engine_text(engine_text_of_schema("false"))


def test_unknown_keyword_is_refused_unless_lenient():
    schema = '{"type": "array", "uniqueItems": true}'
    with pytest.raises(GrammarError, match="uniqueItems"):
        check_engine_text(engine_text_of_schema(schema))
    assert check_engine_text(engine_text_of_schema(schema, lenient=True)) == ['Unimplemented keys: ["uniqueItems"]']


def test_regex_matches_the_whole_output():
    text = engine_text_of_regex("a+b")
    assert accepts(text, "aab")
    assert not accepts(text, "aabc")
    with pytest.raises(GrammarError):
        check_engine_text(engine_text_of_regex("("))


def test_values_are_a_closed_list():
    text = engine_text_of_values(['a"b', "é\n"])
    assert accepts(text, 'a"b')
    assert accepts(text, "é\n")
    assert not accepts(text, "a")
    with pytest.raises(GrammarError):
        engine_text_of_values([])


@pytest.mark.parametrize(
    "schema",
    ['{"x": 1e999}', '{"title": "\\ud800"}', '{"const": -1e400}', '{"minimum": NaN}', '{"x": ' + "9" * 5000 + "}"],
)
def test_json_that_the_engine_cannot_read_is_refused_in_our_words(schema):
    with pytest.raises(GrammarError, match="the schema is not JSON: "):
        engine_text_of_schema(schema)


@pytest.mark.parametrize("depth", [130, 900, 5000])
def test_a_schema_nested_beyond_the_engines_depth_is_too_complex_or_no_json(depth):
    with pytest.raises(GrammarError) as caught:
        check_engine_text(engine_text_of_schema('{"items":' * depth + "{}" + "}" * depth))
    assert isinstance(caught.value, GrammarTooComplexError) or "nested too deeply" in str(caught.value)


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, [1, 2**64], {"a": {"b": [2**60]}}])
def test_a_value_that_the_engine_would_round_is_refused_or_left_free(value):
    schema = json.dumps({"const": value})
    with pytest.raises(GrammarError, match=r"2\^53"):
        engine_text_of_schema(schema)
    assert accepts(engine_text_of_schema(schema, lenient=True), json.dumps(value))
    assert accepts(engine_text_of_schema('{"const": 9007199254740992}'), str(2**53))


@pytest.mark.parametrize(
    "pattern", ["(a{1000}){999}", "a{1000000}", "((a{1,200}){1,200}){1,200}", r"(\p{L}{1,900}x){900}"]
)
def test_a_mask_takes_a_fraction_of_a_second_whatever_the_pattern(pattern):
    """The bound is 1 s of processor time for all of 30 masks; (a{1000}){999} took 0.5 to 3 s for one."""
    started_s = time.process_time()
    try:
        matcher = start_matcher(engine_text_of_regex(pattern), byte_tokenizer())
    except GrammarTooComplexError:
        matcher = None
    for _ in range(30):
        if matcher is None or not matcher.consume_token(ord("a")):
            break
        matcher.compute_bitmask()
    assert time.process_time() - started_s < 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (engine_text_of_schema('{"type": "string", "maxLength": 9, "title": "é"}'), False),
        (engine_text_of_schema('{"properties": {"a": {"enum": ["b"]}}}'), False),
        (engine_text_of_schema('{"type": "string", "pattern": "a*"}'), True),
        (engine_text_of_schema('{"patternProperties": {"a*": {}}}'), True),
        (engine_text_of_schema('{"type": "string", "format": "date", "title": "pattern"}'), False),
        (engine_text_of_regex("a*"), True),
        (engine_text_of_gbnf('root ::= "a"'), True),
        (r'{"grammars": [{"json_schema": {"p\u0061ttern": "a"}}]}', True),
    ],
)
def test_patterns_are_found_however_they_are_written(text, found):
    assert has_pattern(text) is found


@pytest.mark.parametrize("line", ['"a" "b"', '"\\q"', '"a', '"\x01"', '"\\ud800"', f'"{"x" * 999}"'])
def test_a_beginning_that_cannot_be_read_names_none(line):
    text = LLMatcher.grammar_from_lark(f'// begins {line}\n// begins "ab"\nstart: "abc"\n')
    assert find_beginnings(text) == ["ab"]
    assert not start_ready_matcher(text, byte_tokenizer()).is_error()
