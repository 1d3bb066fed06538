"""Answers of the real model that a limit may cut: none that was is told as a success."""

import json
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2_grpc as rpc
from tests.support.schema_corpus import object_of

TEXT = {"type": "string"}
WORDS = {"type": "array", "items": TEXT}
SCHEMAS = [
    {"type": "array", "items": object_of(name=TEXT, sound=TEXT), "minItems": 3},
    {"type": "array", "items": TEXT, "minItems": 5},
    {"type": "array", "items": {"type": "integer"}, "minItems": 8},
    object_of(title=TEXT, tags=WORDS),
    object_of(story=TEXT),
    object_of(person=object_of(name=TEXT, address=object_of(street=TEXT, city=TEXT))),
    object_of(kind={"enum": ["red", "green"]}, why=TEXT),
    object_of(a={"type": "number"}, b={"type": "boolean"}, c={"type": "null"}),
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 3},
    {"anyOf": [object_of(dog=TEXT), object_of(cat=TEXT, lives={"type": "integer"})]},
]
LIMITS_EACH = 4
CLIENTS = 4


def requests(*, strict):
    draw = random.Random(11)  # noqa: S311 - no secret
    for schema in SCHEMAS:
        for _ in range(LIMITS_EACH):
            contract = contract_pb2.OutputContract(schema_json=json.dumps(schema), strict_validation=strict)
            hints = execution_pb2.ExecutionHints(
                max_tokens=draw.randint(2, 60), temperature=0.7, seed=draw.randint(0, 99)
            )
            words = message_pb2.Message(role=message_pb2.ROLE_USER, content="Tell me about animals, at length.")
            yield execution_pb2.SystemRequest(
                mode=execution_pb2.MODE_STRUCTURED, messages=[words], hints=hints, output=contract
            )


def repeats_a_key(response):
    """Tell whether an answer has fewer keys than its schema asks for, since a decoder cannot keep keys different."""
    reasons = [reason for stage in response.validation.stages for reason in stage.reasons]
    return any("written more than once" in reason for reason in reasons)


def was_closed_by_repair(response):
    outcomes = {stage.stage: stage.outcome for stage in response.validation.stages}
    return outcomes.get(contract_pb2.STAGE_JSON_REPAIR) == contract_pb2.STAGE_OUTCOME_REPAIRED


@pytest.mark.parametrize("strict", [True, pytest.param(False, marks=pytest.mark.whole)])
def test_no_answer_that_a_limit_cut_is_told_as_a_success(channel, capsys, strict):
    stub = rpc.OrchestratorServiceStub(channel)
    with ThreadPoolExecutor(CLIENTS) as pool:
        responses = list(pool.map(lambda work: stub.Execute(work, timeout=100), requests(strict=strict)))
    told = Counter()
    for response in responses:
        is_long = response.finish_reason == generation_pb2.FINISH_REASON_LENGTH
        guarantee = contract_pb2.Guarantee.Name(response.validation.guarantee)
        if response.error.code == error_pb2.ERROR_CODE_CONSTRAINT_SCHEMA_INVALID:
            told["a key given twice"] += 1
            assert strict
            assert not is_long
            assert repeats_a_key(response)
        elif response.error.code:
            told[error_pb2.ErrorCode.Name(response.error.code)] += 1
            assert response.error.code == error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED
            assert not response.error.retryable
        elif guarantee == "GUARANTEE_PARTIAL":
            told["partial, with a warning"] += 1
            assert not strict
            assert is_long or repeats_a_key(response)
            assert [warning.code for warning in response.warnings] == [
                "output_truncated" if is_long else "output_invalid"
            ]
        else:
            told["complete"] += 1
            json.loads(response.structured_output_json)
            assert not (is_long and was_closed_by_repair(response))
    with capsys.disabled():
        sys.stdout.write(f"\n{len(responses)} answers at random limits, strict {strict}: {dict(told)}\n")
    assert len(told) > 1, "some are cut, and some are not"
