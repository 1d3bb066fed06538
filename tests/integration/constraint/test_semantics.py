import json

import pytest

from pagantic.common.v1 import error_pb2
from pagantic.constraint.v1 import constraint_service_pb2 as rpc
from pagantic.constraint.v1 import contract_pb2
from pagantic.inference.v1 import inference_service_pb2 as inference_pb
from pagantic.inference.v1 import inference_service_pb2_grpc as inference_grpc
from pagantic_common.domain.errors import (
    DeadlineExceeded,
    ErrorCode,
    Internal,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.call import call_unary
from pagantic_common.rpc.process.server import start_server
from services.constraint.settings import ConstraintSettings
from tests.support.constraint_app import running
from tests.support.doors import open_to_all

MET = {"reason": "it greets", "valid": True, "confidence": 0.9}
MISSED = {"reason": "it insults", "valid": False, "confidence": 0.8}
SCHEMA = json.dumps({"type": "object", "properties": {"c": {"enum": ["red"]}}, "required": ["c"]})


class ScriptedJudge(inference_grpc.InferenceServiceServicer):
    """Streams an answer in two pieces, or raises; keeps what it was asked."""

    def __init__(self):
        self.answer = json.dumps(MET)
        self.error = None
        self.is_cut = False
        self.asked = []

    async def Infer(self, request, _context):
        self.asked.append(request)
        if self.error:
            raise self.error
        for piece in (self.answer[:5], self.answer[5:]):
            yield inference_pb.InferResponse(delta=inference_pb.CandidateDelta(content=piece))
        if not self.is_cut:
            yield inference_pb.InferResponse(completed=inference_pb.InferenceCompleted())


@pytest.fixture
async def judge():
    servicer = ScriptedJudge()
    registration = Registration(
        "pagantic.inference.v1.InferenceService",
        lambda server: inference_grpc.add_InferenceServiceServicer_to_server(servicer, server),
        open_to_all("pagantic.inference.v1.InferenceService"),
    )
    server, _, port = await start_server(ConstraintSettings(port=0), [registration])
    servicer.address = f"127.0.0.1:{port}"
    yield servicer
    await server.stop(None)


@pytest.fixture
async def stub(judge):
    async with running(inference_address=judge.address) as stub:
        yield stub


def validate(stub, **fields):
    request = rpc.ValidateSemanticsRequest(**{"output": "hello", "intent": "greets", **fields})
    return call_unary("constraint", stub.ValidateSemantics, request)


async def test_the_verdict_is_given(stub, judge):
    reply = await validate(stub, judge_model="big")
    assert (reply.valid, reply.reason, reply.confidence) == (True, "it greets", 0.9)
    (asked,) = judge.asked
    assert asked.model == "big"
    assert asked.sampling.temperature == 0
    assert "confidence" in asked.constraint.engine_text
    judge.answer = json.dumps(MISSED)
    assert not (await validate(stub)).valid


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (Overloaded("busy", code=ErrorCode.INFERENCE_OVERLOADED), Overloaded, ErrorCode.INFERENCE_OVERLOADED),
        (InvalidRequest("no such model", code=ErrorCode.CONFIG_NO_ENGINE), InvalidRequest, ErrorCode.CONFIG_NO_ENGINE),
        (Unavailable("broken", code=ErrorCode.INFERENCE_ENGINE_ERROR), Unavailable, ErrorCode.INFERENCE_ENGINE_ERROR),
    ],
)
async def test_trouble_in_asking_is_an_error_and_no_verdict(stub, judge, error, kind, code):
    judge.error = error
    with pytest.raises(kind) as caught:
        await validate(stub)
    assert caught.value.code is code


async def test_an_answer_that_is_cut_or_no_verdict_is_malformed(stub, judge):
    judge.is_cut = True
    with pytest.raises(Internal) as caught:
        await validate(stub)
    assert caught.value.code is ErrorCode.INFERENCE_MALFORMED_RESPONSE
    judge.is_cut, judge.answer = False, '{"reason": "so'
    with pytest.raises(Internal) as caught:
        await validate(stub)
    assert caught.value.code is ErrorCode.INFERENCE_MALFORMED_RESPONSE


async def test_a_judge_that_cannot_be_reached_is_unavailable():
    async with running(inference_address="127.0.0.1:1", judge_timeout_s=0.5) as stub:
        with pytest.raises((Unavailable, DeadlineExceeded)):
            await validate(stub)


async def test_an_intent_must_be_given_and_be_short(stub):
    with pytest.raises(InvalidRequest, match="intent is empty"):
        await validate(stub, intent="")
    with pytest.raises(InvalidRequest, match="at most 4000"):
        await validate(stub, intent="x" * 4001)


async def test_enforce_judges_last_and_only_what_is_valid(stub, judge):
    contract = contract_pb2.OutputContract(schema_json=SCHEMA)
    judge.answer = json.dumps(MISSED)
    request = rpc.EnforceRequest(output='{"c": "RED"}', contract=contract, semantic_intent="greets", judge_model="m")
    reply = await stub.Enforce(request)
    assert (reply.valid, reply.guarantee) == (False, contract_pb2.GUARANTEE_REPAIRED)
    assert reply.error.code == error_pb2.ERROR_CODE_VALIDATION_SEMANTIC_FAILED
    assert reply.stages[5].outcome == contract_pb2.STAGE_OUTCOME_FAILED
    assert reply.stages[5].duration.ToTimedelta().total_seconds() > 0
    assert reply.semantic_score == pytest.approx(0.2)
    assert 'Output: "{\\"c\\": \\"red\\"}"' in judge.asked[0].chat.messages[1].content
    reply = await stub.Enforce(rpc.EnforceRequest(output="{}", contract=contract, semantic_intent="greets"))
    assert reply.stages[5].outcome == contract_pb2.STAGE_OUTCOME_SKIPPED
    assert not reply.HasField("semantic_score")
    assert len(judge.asked) == 1
