"""Schemas of messages: they are what the JSON mapping of Protocol Buffers writes, and refuse what it does not read."""

from functools import cache

import pytest
from google.protobuf import json_format
from hypothesis import assume, given, settings

from gateway.http.bodies import SCHEMAS
from gateway.http.document.messages import message_schemas
from gateway.http.native.executions import read_request
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.domain.errors import InvalidRequest
from tests.fuzz.messages import sparse
from tests.support.draft202012 import validator_of
from tests.support.examples import examples

KINDS = (execution_pb2.SystemRequest, execution_pb2.SystemResponse, event_pb2.ExecutionEvent)
DEPTH = 2  # Messages within messages within the message.
COMPONENTS = {"schemas": message_schemas([kind.DESCRIPTOR for kind in KINDS])}


@cache
def validator_for(kind):
    return validator_of({"$ref": f"{SCHEMAS}{kind.DESCRIPTOR.full_name}", "components": COMPONENTS})


def problems_of(value, kind):
    """Return the differences, but for numbers in place of names of enums: they are of a newer contract."""
    errors = validator_for(kind).iter_errors(value)
    return [error for error in errors if not (error.validator == "enum" and isinstance(error.instance, int))]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_message_is_as_json_fits_its_schema(kind):
    @settings(max_examples=examples(30))
    @given(sparse(kind.DESCRIPTOR, DEPTH))
    def holds(message):
        try:
            value = json_format.MessageToDict(message, preserving_proto_field_name=True)
        except json_format.SerializeToJsonError:  # The mapping has no words for a time beyond its range.
            assume(False)
        assert problems_of(value, kind) == []

    holds()


@pytest.mark.parametrize(
    "fields",
    [
        {"colour": "green"},
        {"mode": "MODE_UNKNOWN"},
        {"messages": 5},
        {"messages": [{"role": "ROLE_USER", "content": 5}]},
        {"hints": {"timeout": "soon"}},
        {"hints": {"seed": "many"}},
        {"hints": {"max_tokens": 1 << 31}},
        {"prompt": {"text": "a", "template": {"name": "b"}}},
        {"metadata": {"a": 1}},
    ],
)
def test_what_the_gateway_does_not_read_does_not_fit(fields):
    assert problems_of(fields, execution_pb2.SystemRequest)
    with pytest.raises(InvalidRequest):
        read_request(fields, "r", 60)


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "MODE_CHAT", "messages": [{"role": "ROLE_USER", "content": "hi"}]},
        {"hints": {"timeout": "1.5s", "seed": "18446744073709551615", "temperature": 0.5, "logit_bias": {"1": -3}}},
        {"prompt": {"template": {"name": "b", "variables": {"c": "d"}}}, "metadata": {"a": "1"}},
        {},
    ],
)
def test_what_the_gateway_reads_fits(fields):
    assert problems_of(fields, execution_pb2.SystemRequest) == []
    assert read_request(fields, "r", 60).request_id == "r"
