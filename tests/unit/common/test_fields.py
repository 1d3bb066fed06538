from pagantic.common.v1 import error_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.codec.errors import failure_from_proto, failure_to_proto
from pagantic_common.codec.fields import decode_optional, encode_optional, optional
from pagantic_common.domain.errors import ErrorCode, failure_of

GONE = failure_of(ErrorCode.INFERENCE_ENGINE_ERROR, "gone")


def test_an_optional_field_is_none_when_it_is_not_set_and_zero_when_it_is_zero():
    assert optional(execution_pb2.ExecutionHints(), "temperature") is None
    assert optional(execution_pb2.ExecutionHints(temperature=0.0), "temperature") == 0.0


def test_a_message_field_is_none_when_it_is_not_set():
    assert decode_optional(execution_pb2.SystemResponse(), "error", failure_from_proto) is None
    response = execution_pb2.SystemResponse(error=encode_optional(GONE, failure_to_proto))
    assert decode_optional(response, "error", failure_from_proto) == GONE


def test_none_leaves_a_message_field_unset():
    response = execution_pb2.SystemResponse(error=encode_optional(None, failure_to_proto))
    assert response == execution_pb2.SystemResponse()
    assert not response.HasField("error")
    assert execution_pb2.SystemResponse(error=error_pb2.SystemError()).HasField("error")
