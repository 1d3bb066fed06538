"""The tool search_documents: its definition, arguments and result, and where it stands among the other tools."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import ErrorCode, InvalidRequest, NotFound, PermissionDenied, Unavailable
from pagantic_common.domain.messages import ToolCall, ToolSafety
from services.orchestrator.app.policy.search import SearchDocuments
from services.orchestrator.app.services import CallTool, ListTools, SearchTools
from services.orchestrator.core.tools.document_search import (
    MAX_CHUNKS,
    NAME,
    DocumentSearch,
    write_result,
)
from tests.support.draft202012 import validator_of
from tests.support.scripted_services import ScriptedTools, scripted_services

ONE, TWO = ("notes",), ("notes", "manuals")
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 25), st.floats(allow_nan=False), st.text(max_size=4), st.sampled_from(TWO)
)
ARGUMENTS = st.dictionaries(st.sampled_from(("query", "collection", "max_chunks", "other")), VALUES)


@given(ARGUMENTS, st.sampled_from((ONE, TWO)))
def test_exactly_the_arguments_of_the_schema_are_read(arguments, collections):
    schema = json.loads(DocumentSearch(collections).definition.parameters_json)
    is_valid = validator_of(schema).is_valid(arguments)
    if not is_valid:
        with pytest.raises(InvalidRequest) as refused:
            DocumentSearch(collections).read(json.dumps(arguments))
        assert refused.value.code is ErrorCode.TOOL_INVALID_ARGUMENTS
        return
    asked = DocumentSearch(collections).read(json.dumps(arguments))
    assert asked.query == arguments["query"]
    assert asked.collection == arguments.get("collection", "notes")


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"'])
def test_arguments_that_are_no_object_are_told(text):
    with pytest.raises(InvalidRequest, match="'search_documents' was not run"):
        DocumentSearch(ONE).read(text)


@given(st.lists(st.text(max_size=40), max_size=12), st.integers(40, 400))
def test_a_result_has_the_chunks_that_fit_in_their_order_and_counts_the_rest(texts, max_bytes):
    chunks = [Chunk(str(number), text, source="a.txt") for number, text in enumerate(texts)]
    written = write_result(chunks, max_bytes)
    result = json.loads(written)
    contents = [chunk["content"] for chunk in result["chunks"]]
    assert len(written.encode()) <= max_bytes
    left = iter(texts)
    assert all(content in left for content in contents), "in their order"
    assert len(contents) + result.get("left_out", 0) == len(texts)


def test_a_long_chunk_is_cut_and_hides_no_other():
    chunks = [Chunk("1", "\x00" * 80_000, source="a.txt"), Chunk("2", "short", source="b.txt")]
    long, short = json.loads(write_result(chunks))["chunks"]
    assert (len(long["content"]), long["is_cut"]) == (8192, True)
    assert short == {"source": "b.txt", "content": "short"}


class Documents:
    """Answers each retrieval with a chunk, or raises."""

    def __init__(self, failure=None):
        self.failure = failure
        self.asked = []

    async def retrieve(self, query, policy):
        self.asked.append((query, policy.collection, policy.max_chunks))
        if self.failure is not None:
            raise self.failure
        return (Chunk("1", "The lamp is green.", "house.txt"),)


def searching(documents, collections=ONE, tools=None):
    services = scripted_services(tools=tools, context=documents)
    return replace(services, around=(SearchDocuments(services, collections),))


def search_call(**arguments):
    return ToolCall("c1", NAME, json.dumps(arguments))


async def test_a_call_searches_and_every_other_one_goes_to_the_tools_service():
    documents, others = Documents(), ScriptedTools()
    services = searching(documents, TWO, others)
    record = await services.do(CallTool(search_call(query="lamp", collection="notes", max_chunks=3)))
    clock = await services.do(CallTool(ToolCall("c2", "clock", "{}")))
    assert json.loads(record.result) == {"chunks": [{"source": "house.txt", "content": "The lamp is green."}]}
    assert not record.is_error
    assert documents.asked == [("lamp", "notes", 3)]
    assert clock.result == "noon"
    assert [call.name for call in others.calls] == ["clock"]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (NotFound("no collection is named 'notes'"), ErrorCode.TOOL_EXECUTION_FAILED),
        (InvalidRequest("wrong"), ErrorCode.TOOL_EXECUTION_FAILED),
        (PermissionDenied("tenant 'acme' may not retrieve"), ErrorCode.TOOL_DENIED),
    ],
)
async def test_a_search_that_fails_is_a_record_with_the_reason(failure, code):
    record = await searching(Documents(failure)).do(CallTool(search_call(query="x")))
    assert (record.is_error, record.error_code, record.result) == (True, code, str(failure))


async def test_wrong_arguments_do_not_reach_the_documents():
    documents = Documents()
    record = await searching(documents).do(CallTool(search_call(max_chunks=5)))
    assert record.error_code is ErrorCode.TOOL_INVALID_ARGUMENTS
    assert documents.asked == []


async def test_documents_that_are_away_fail_the_call_as_any_service_does():
    away = Unavailable("the context service cannot be reached", code=ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE)
    with pytest.raises(Unavailable):
        await searching(Documents(away)).do(CallTool(search_call(query="x")))


async def test_the_tool_is_listed_by_name_and_found_first():
    others = ScriptedTools()
    services = searching(Documents(), TWO, others)
    assert [tool.definition.name for tool in await services.do(ListTools())] == ["clock", NAME]
    assert [tool.definition.name for tool in await services.do(ListTools([NAME]))] == [NAME]
    assert [tool.definition.name for tool in await services.do(ListTools([NAME, "clock"]))] == ["clock", NAME]
    matches = await services.do(SearchTools("what does the clock say", ["clock", NAME], 5))
    assert matches == [NAME, "clock"]
    assert await services.do(SearchTools("clock", ["clock"], 5)) == ["clock"]
    others.definition = replace(others.definition, name=NAME)
    assert [tool.definition.safety for tool in await services.do(ListTools())] == [ToolSafety.READ], "its own tool wins"


def test_a_model_names_a_collection_only_where_there_are_several():
    one, two = (json.loads(DocumentSearch(names).definition.parameters_json)["properties"] for names in (ONE, TWO))
    assert "collection" not in one
    assert two["collection"]["enum"] == list(TWO)
    assert one["max_chunks"]["maximum"] == MAX_CHUNKS
