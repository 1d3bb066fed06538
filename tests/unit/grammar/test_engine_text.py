import json

import pytest
from llguidance import LLMatcher

from pagantic_common.grammar.engine_text import (
    GrammarError,
    byte_tokenizer,
    check_engine_text,
    engine_text_of_regex,
    engine_text_of_schema,
    engine_text_of_values,
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
