import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.chunks import Chunk, ChunkLocation
from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.text.citations import ABSTENTION_JSON, NOT_IN_SOURCES, CitationPolicy, Claim, text_of
from pagantic_common.domain.validation import Guarantee
from services.orchestrator.core.conversation.grounding import CitedText, citations_of, is_quoted, unquotable_failure
from services.orchestrator.core.conversation.prompt import schema_prompt
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.plan import Plan, Step
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.model.request_check import check_configuration, check_request
from services.orchestrator.core.model.retrieval import ContextPolicy, Retriever
from tests.unit.orchestrator.test_machine import request

CITED = OutputContract(citations=CitationPolicy())
CONTEXT = ContextPolicy(Retriever.BM25, "c")
CLAIMS = st.builds(Claim, st.text(min_size=1, max_size=12), st.integers(1, 99), st.text(max_size=12))


def json_of(claims, **options):
    listed = [{"source": claim.source, "quote": claim.quote, "text": claim.text} for claim in claims]
    return json.dumps({"in_sources": True, "claims": listed}, **options)


def pieces_of(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(st.lists(CLAIMS, min_size=1, max_size=4), st.booleans(), st.data())
def test_what_streams_is_the_text_of_the_whole_answer(claims, is_ascii, data):
    reader = CitedText()
    pieces = pieces_of(json_of(claims, ensure_ascii=is_ascii), data)
    assert "".join(map(reader.feed, pieces)) == text_of(claims)


@given(st.data())
def test_an_abstention_streams_as_its_sentence(data):
    reader = CitedText()
    assert "".join(map(reader.feed, pieces_of(ABSTENTION_JSON, data))) == NOT_IN_SOURCES


@given(st.text(alphabet='{}[]":,\\ud8ab text source in_sources true1', max_size=80))
def test_any_other_text_can_be_read(text):
    CitedText().feed(text).encode()


def test_text_streams_as_soon_as_it_is_known():
    reader = CitedText()
    assert reader.feed('{"in_sources": true, "claims": [{"source": 12, "quote": "text", "text": "Hats \\u00') == "Hats "
    assert reader.feed("e9 \\ud83d") == "é "
    assert reader.feed('\\ude00 are"') == "😀 are [12]"


def test_a_claim_may_come_before_its_source():
    reader = CitedText()
    assert reader.feed('{"claims": [{"text": "Hats are", "source": 1') == "Hats are"
    assert reader.feed('2, "quote": "text"}, {"text": "red", "source": 3}') == " [12] red [3]"


def test_places_count_the_characters_of_the_document():
    chunk = Chunk("a", "é red hat. A red hat.", "hats.txt", location=ChunkLocation(100, 121, page=3))
    (citation,) = citations_of([Claim("x", 2, "red hat")], [Chunk("b", "", "b"), chunk], Guarantee.ENFORCED)
    assert (citation.document, citation.page, citation.start, citation.end) == ("hats.txt", 3, 102, 109)
    (citation,) = citations_of([Claim("x", 1, "hat. A")], [Chunk("b", chunk.content, "b")], Guarantee.VALIDATED)
    assert (citation.page, citation.start, citation.end, citation.quote) == (0, 6, 12, "hat. A")


def test_a_place_is_that_of_whole_words():
    chunk = Chunk("a", "A smart is long now idea: art is long now.", "a")
    claim = Claim("x", 1, "art is long now")
    (citation,) = citations_of([claim], [chunk], Guarantee.ENFORCED)
    assert (citation.start, citation.end) == (26, 41)
    assert is_quoted(claim, [chunk])
    assert not is_quoted(Claim("x", 1, "mart is long now"), [chunk])


@pytest.mark.parametrize(
    ("contents", "may_abstain", "fails"),
    [
        (["---", "\u200f"], False, True),
        (["a-" * 50], False, True),
        (["---", "Noon."], False, False),
        (["---"], True, False),
        ([], False, False),
    ],
)
def test_chunks_without_a_quote_fail_the_request_only_where_the_model_may_not_abstain(contents, may_abstain, fails):
    chunks = [Chunk("a", content, "a") for content in contents]
    failure = unquotable_failure(CitationPolicy(may_abstain=may_abstain), chunks)
    assert (failure is not None) is fails
    assert failure is None or failure.code is ErrorCode.ORCHESTRATION_NOT_ANSWERABLE


def test_citations_stand_in_chat_and_instead_of_a_schema():
    for mode in (Mode.CHAT, Mode.STRUCTURED):
        asked = request(mode, output=CITED, context=CONTEXT)
        check_request(asked)
        check_configuration(asked)
        assert asked.is_validated
        assert '"in_sources": boolean' in schema_prompt(asked)


@pytest.mark.parametrize(
    ("mode", "fields", "message"),
    [
        (Mode.CHAT, {"output": CITED}, "name a collection in context"),
        (Mode.REDUNDANT, {"output": CITED, "context": CONTEXT}, "mode REDUNDANT gives no citations"),
        (Mode.PLAN, {"output": CITED, "context": CONTEXT}, "mode PLAN gives no citations"),
        (
            Mode.CHAT,
            {"output": OutputContract(schema_json="{}", citations=CitationPolicy()), "context": CONTEXT},
            "leave output.schema_json and the grammar empty",
        ),
        (
            Mode.CHAT,
            {"output": OutputContract(citations=CitationPolicy(max_claims=40)), "context": CONTEXT},
            "output.citations.max_claims is 40",
        ),
        (Mode.PLAN, {"plan": Plan((Step("a", "infer", output=CITED),))}, "a step of a plan gives no citations"),
    ],
)
def test_citations_that_cannot_be_are_refused_with_the_next_step(mode, fields, message):
    with pytest.raises(InvalidRequest, match=message):
        check_request(request(mode, **fields))
