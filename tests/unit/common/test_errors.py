import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic.common.v1 import error_pb2
from pagantic_common.codec.errors import failure_from_proto, failure_to_proto
from pagantic_common.domain import errors
from pagantic_common.domain.errors import ErrorCategory, ErrorCode, Failure, InvalidRequest, failure_of
from pagantic_common.rpc.status import (
    DETAILS_KEY,
    MAX_STATUS_BYTES,
    STATUS_OF_CLASS,
    details_of,
    error_of,
    restore_error,
    status_code_of,
    status_message,
)

FAILURES = st.builds(
    failure_of,
    st.sampled_from(list(ErrorCode)),
    st.text(max_size=3000),
    details=st.dictionaries(st.text(max_size=8), st.text(max_size=3000), max_size=5),
)


def as_rpc_error(error: errors.PaganticError) -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata((DETAILS_KEY, details_of(error)))
    return grpc.aio.AioRpcError(status_code_of(error), grpc.aio.Metadata(), trailing, details=str(error))


def test_every_code_of_the_proto_is_in_the_domain_and_back():
    in_proto = {name.removeprefix("ERROR_CODE_") for name in error_pb2.ErrorCode.keys()} - {"UNSPECIFIED"}  # noqa: SIM118
    assert in_proto == {code.value for code in ErrorCode}
    categories = {name.removeprefix("ERROR_CATEGORY_") for name in error_pb2.ErrorCategory.keys()}  # noqa: SIM118
    assert categories - {"UNSPECIFIED"} == {category.value for category in ErrorCategory}


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_a_category_and_a_status(code):
    error = error_of(failure_of(code, "x"))
    assert code.category in ErrorCategory
    assert status_code_of(error) is not grpc.StatusCode.UNKNOWN


@pytest.mark.parametrize("code", [code for code in ErrorCode if code.value.startswith("QUOTA_")])
def test_a_quota_that_is_used_up_is_an_exhausted_resource(code):
    error = error_of(failure_of(code, "x"))
    assert isinstance(error, errors.Overloaded)
    assert status_code_of(error) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.failure.retryable == (code in {ErrorCode.QUOTA_RATE, ErrorCode.QUOTA_CONCURRENCY})


def test_tool_failures_are_retryable_only_when_the_tool_is_idempotent():
    assert failure_of(ErrorCode.TOOL_TIMEOUT, "x", tool_is_idempotent=True).retryable
    assert not failure_of(ErrorCode.TOOL_TIMEOUT, "x").retryable
    assert not failure_of(ErrorCode.TOOL_DENIED, "x", tool_is_idempotent=True).retryable


@pytest.mark.parametrize("cls", list(STATUS_OF_CLASS))
def test_an_error_is_restored_as_the_class_that_was_raised(cls):
    restored = restore_error("inference", as_rpc_error(cls("went wrong", retry_after_s=1.5)))
    assert type(restored) is cls
    assert str(restored) == "went wrong"
    assert restored.retry_after_s == 1.5


def test_a_service_that_does_not_answer_is_named():
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "refused")
    restored = restore_error("tools", error)
    assert isinstance(restored, errors.Unavailable)
    assert "the tools service cannot be reached" in str(restored)
    further_up = restore_error("context", as_rpc_error(restored))
    assert type(further_up) is errors.Unavailable
    assert further_up.retry_after_s


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (
            grpc.StatusCode.UNAVAILABLE,
            "connections to all backends failing; last error: UNKNOWN: ipv4:127.0.0.1:9: Failed to connect to remote",
            "the tools service cannot be reached: nothing answers at 127.0.0.1:9",
        ),
        (
            grpc.StatusCode.UNAVAILABLE,
            "last error: UNKNOWN: ipv6:%5B::1%5D:9: connect failed",
            "the tools service cannot be reached: nothing answers at [::1]:9",
        ),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", "the tools service cannot be reached: the connection was lost"),
        (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "Stream removed (Deadline Exceeded)",
            "the tools service did not answer within the time given",
        ),
    ],
)
def test_what_grpc_says_is_told_in_plain_words(status, text, words):
    error = grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(), text)
    assert str(restore_error("tools", error)) == words


@given(FAILURES, st.lists(FAILURES, max_size=7))
def test_status_details_stay_under_their_limit_and_keep_the_code(failure, causes):
    for cause in causes:
        failure = failure.because_of(cause)
    error = error_of(failure)
    assert len(details_of(error)) <= MAX_STATUS_BYTES
    assert restore_error("x", as_rpc_error(error)).code is failure.code


@given(FAILURES)
def test_a_failure_survives_the_codec(failure):
    assert failure_from_proto(failure_to_proto(failure)) == failure


def test_causes_are_a_flat_chain_of_at_most_five_nearest_first():
    chain = Failure(code=None, message="0")
    for number in range(1, 8):
        chain = Failure(code=None, message=str(number)).because_of(chain)
    assert [cause.message for cause in chain.caused_by] == ["6", "5", "4", "3", "2"]
    assert all(not cause.caused_by for cause in chain.caused_by)


def test_a_message_with_half_of_a_surrogate_pair_can_be_sent():
    """gRPC would send no status at all, and the caller wait until its deadline."""
    assert status_message(InvalidRequest("no field \ud800")).encode() == b"no field ?"


def test_a_code_of_a_newer_version_does_not_blame_the_caller():
    encoded = failure_to_proto(failure_of(ErrorCode.CONFIG_INVALID, "odd"))
    encoded.code = 99_999
    assert type(error_of(failure_from_proto(encoded))) is errors.Internal
