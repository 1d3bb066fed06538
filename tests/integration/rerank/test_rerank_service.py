"""The rerank service over a real socket."""

from __future__ import annotations

import json
import math

import grpc
import pytest

from pagantic.common.v1 import chunk_pb2
from pagantic.rerank.v1 import rerank_service_pb2 as pb
from pagantic.rerank.v1 import rerank_service_pb2_grpc as pb_grpc
from pagantic_common.domain.errors import ErrorCode
from pagantic_common.rpc.process.server import start_server
from pagantic_common.rpc.status import restore_error
from services.rerank.__main__ import open_app
from services.rerank.settings import RerankSettings


@pytest.fixture
async def stub():
    async with open_app(RerankSettings(port=0)) as registrations:
        server, _, port = await start_server(RerankSettings(port=0), registrations)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield pb_grpc.RerankServiceStub(channel)
        await server.stop(None)


def chunk(content):
    return chunk_pb2.Chunk(id="1", content=content, source="s", score=0.5, score_kind="keyword")


async def test_chunks_come_back_best_first(stub):
    request = pb.RerankRequest(
        query="red fox", chunks=[chunk("blue"), chunk("a fox"), chunk("red fox")], top_k=2, scorer="bm25"
    )
    reply = await stub.Rerank(request)
    assert [one.content for one in reply.chunks] == ["red fox", "a fox"]
    assert reply.chunks[0].score_kind == "bm25"
    assert json.loads(reply.chunks[0].metadata_json) == {"retriever_score": 0.5, "retriever_score_kind": "keyword"}


async def test_min_score_of_zero_differs_from_unset(stub):
    chunks = [chunk("blue"), chunk("red")]
    kept = await stub.Rerank(pb.RerankRequest(query="red", chunks=chunks, scorer="keyword", min_score=1.0))
    assert [one.content for one in kept.chunks] == ["red"]
    assert (
        len((await stub.Rerank(pb.RerankRequest(query="red", chunks=chunks, scorer="bm25", min_score=0.0))).chunks) == 2
    )


async def test_scorers_are_listed_default_first(stub):
    reply = await stub.ListScorers(pb.ListScorersRequest())
    assert [(one.name, one.min_score, one.max_score, one.default_weight) for one in reply.scorers] == [
        ("retriever", -math.inf, math.inf, 0.7),
        ("embedding", -1.0, 1.0, 0.3),
        ("bm25", 0.0, math.inf, 0.0),
        ("keyword", 0.0, 1.0, 0.0),
        ("cross_encoder", 0.0, 1.0, 0.0),
        ("likelihood", -100.0, 0.0, 0.0),
        ("judge", 0.0, 1.0, 0.0),
    ]


async def test_unknown_scorer_is_invalid_argument_listing_the_known(stub):
    with pytest.raises(grpc.aio.AioRpcError, match="'bm25', 'keyword'") as raised:
        await stub.Rerank(pb.RerankRequest(query="q", scorer="magic"))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert restore_error("rerank", raised.value).code is ErrorCode.CONFIG_INVALID


async def test_deadline_of_the_caller_holds(stub):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Rerank(
            pb.RerankRequest(query="a", scorer="bm25", chunks=[chunk("a b c " * 200)] * 900), timeout=1e-6
        )
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


# Seconds where time grows with the text; minutes where it grows with its square.
BOMBS = {"combining marks": "e" + "\u0301\u0323" * 45_000, "ligatures": "\ufdfa" * 100_000}
BOMB_S = 20


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
async def test_no_text_keeps_others_from_their_answer(stub, text):
    query = stub.Rerank(pb.RerankRequest(query=text * 10, scorer="bm25", chunks=[chunk("a")]), timeout=BOMB_S)
    chunks = stub.Rerank(pb.RerankRequest(query="a", scorer="bm25", chunks=[chunk(text)] * 3), timeout=BOMB_S)
    await stub.ListScorers(pb.ListScorersRequest(), timeout=BOMB_S)
    assert len((await query).chunks) == 1
    assert len((await chunks).chunks) == 3
