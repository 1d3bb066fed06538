"""The prompts that have a model write queries, and the reading of what it writes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.core.conversation.query_writing import query_prompts, read_document, read_wordings
from services.orchestrator.core.model.retrieval import QueryExpansion

texts = st.lists(st.text(max_size=20), max_size=6)


def test_each_method_is_one_inference_with_a_bound():
    assert query_prompts("Why?", QueryExpansion()) == []
    wordings, document = query_prompts("Why?", QueryExpansion(3, has_hypothetical_document=True))
    schema = json.loads(wordings.schema_json)
    assert (schema["minItems"], schema["maxItems"]) == (3, 3)
    assert (wordings.max_tokens, document.max_tokens, document.schema_json) == (240, 160, "")
    for prompt in (wordings, document):
        assert prompt.messages[0].content.endswith("```\nWhy?\n```")


def test_of_a_long_question_the_end_is_shown():
    (prompt,) = query_prompts("a" * 9000 + "end?", QueryExpansion(1))
    assert prompt.messages[0].content.endswith("aend?\n```")
    assert len(prompt.messages[0].content) < 8600


@given(texts)
def test_the_different_texts_of_a_list_are_queries(listed):
    read = read_wordings(json.dumps(listed))
    assert list(read) == list(dict.fromkeys(text.strip() for text in listed if text.strip()))


@given(texts, st.integers(0, 200))
def test_a_list_that_was_cut_counts_as_far_as_it_goes(listed, length):
    read = read_wordings(json.dumps(listed, ensure_ascii=False)[:length])
    assert all(any(text.strip().startswith(query) for text in listed) for query in read)


@pytest.mark.parametrize("output", ["", "no JSON", '{"a": "b"}', "[1, null, {}]", '"text"'])
def test_what_is_no_list_of_texts_gives_no_queries(output):
    assert read_wordings(output) == ()


def test_a_query_can_be_sent_whatever_its_escapes_give():
    assert read_wordings('["\\ud800", "a\\ud800b", "\\ud83d\\ude00"]') == ("ab", "\U0001f600")


def test_a_document_is_the_output_without_the_space_around_it():
    assert read_document(" It rains.\n") == ("It rains.",)
    assert read_document(" \n") == ()
