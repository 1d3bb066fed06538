"""Failures as HTTP says them: their statuses, their form, and whether to try again."""

import pytest

from gateway.http.failures import error_of, error_of_refusal, headers_of, is_retryable, status_of
from gateway.web.refusal import Refusal
from pagantic_common.domain import errors
from pagantic_common.domain.errors import ErrorCode, PaganticError, failure_of
from pagantic_common.rpc import status
from pagantic_common.rpc.status import STATUS_OF_CLASS, MessageTooLarge, Unreachable
from tests.support.http_document import the_document

NO_ENGINE = ErrorCode.CONFIG_NO_ENGINE


@pytest.mark.parametrize(
    ("error", "expected", "kind"),
    [
        (errors.InvalidRequest("x"), 400, "invalid_request_error"),
        (MessageTooLarge("x"), 413, "invalid_request_error"),
        (errors.Unauthenticated("x"), 401, "authentication_error"),
        (errors.PermissionDenied("x"), 403, "permission_error"),
        (errors.NotFound("x"), 404, "not_found_error"),
        (errors.InvalidRequest("x", code=NO_ENGINE, details={"unknown_model": "m"}), 404, "not_found_error"),
        (errors.InvalidRequest("x", code=NO_ENGINE), 400, "invalid_request_error"),
        (errors.InvalidRequest("x", code=NO_ENGINE, details={"missing_capability": "embed"}), 501, "server_error"),
        (errors.PreconditionFailed("x", code=NO_ENGINE), 500, "server_error"),
        (errors.PreconditionFailed("x"), 409, "invalid_request_error"),
        (errors.Conflict("x"), 409, "invalid_request_error"),
        (errors.Aborted("x"), 409, "invalid_request_error"),
        (errors.Overloaded("x", code=ErrorCode.QUOTA_RATE), 429, "rate_limit_error"),
        (errors.Overloaded("x", code=ErrorCode.QUOTA_CONCURRENCY), 429, "rate_limit_error"),
        (errors.Overloaded("x", code=ErrorCode.QUOTA_BUDGET), 429, "rate_limit_error"),
        (errors.Overloaded("x", code=ErrorCode.QUOTA_STORAGE), 429, "rate_limit_error"),
        (errors.PermissionDenied("x", code=ErrorCode.GUARD_BLOCKED), 400, "invalid_request_error"),
        (errors.Overloaded("x"), 503, "overloaded_error"),
        (errors.Unavailable("x"), 503, "overloaded_error"),
        (Unreachable("x"), 503, "overloaded_error"),
        (errors.Cancelled("x"), 499, "invalid_request_error"),
        (errors.Internal("x"), 500, "server_error"),
        (errors.Unsupported("x"), 501, "server_error"),
        (errors.DeadlineExceeded("x"), 504, "timeout_error"),
        (PaganticError("x"), 500, "server_error"),
    ],
)
def test_each_error_has_its_status_and_type(error, expected, kind):
    assert (status_of(error), error_of(error)["type"]) == (expected, kind)


def test_each_code_of_the_taxonomy_has_a_status_that_says_whose_fault_it_is():
    assert {code: status_of(status.error_of(failure_of(code, "x"))) for code in ErrorCode} == {
        ErrorCode.INFERENCE_ENGINE_ERROR: 500,
        ErrorCode.INFERENCE_MODEL_UNAVAILABLE: 503,
        ErrorCode.INFERENCE_CONTEXT_EXCEEDED: 400,
        ErrorCode.INFERENCE_MALFORMED_RESPONSE: 500,
        ErrorCode.INFERENCE_OVERLOADED: 503,
        ErrorCode.INFERENCE_OUTPUT_TRUNCATED: 400,
        ErrorCode.TOOL_NOT_FOUND: 400,
        ErrorCode.TOOL_INVALID_ARGUMENTS: 400,
        ErrorCode.TOOL_EXECUTION_FAILED: 502,
        ErrorCode.TOOL_TIMEOUT: 504,
        ErrorCode.TOOL_UNAVAILABLE: 503,
        ErrorCode.TOOL_DENIED: 403,
        ErrorCode.TOOL_OUTCOME_UNKNOWN: 502,
        ErrorCode.CONSTRAINT_GRAMMAR_INVALID: 400,
        ErrorCode.CONSTRAINT_GRAMMAR_REJECTED: 500,
        ErrorCode.CONSTRAINT_SCHEMA_INVALID: 500,
        ErrorCode.CONSTRAINT_JSON_INVALID: 500,
        ErrorCode.CONSTRAINT_ENUM_UNRECOGNIZED: 500,
        ErrorCode.CONSTRAINT_TOO_COMPLEX: 400,
        ErrorCode.VALIDATION_RULE_FAILED: 500,
        ErrorCode.VALIDATION_SEMANTIC_FAILED: 500,
        ErrorCode.ORCHESTRATION_STEP_MISMATCH: 422,
        ErrorCode.ORCHESTRATION_ITERATION_LIMIT: 500,
        ErrorCode.ORCHESTRATION_NO_CONSENSUS: 500,
        ErrorCode.ORCHESTRATION_PLAN_REJECTED: 422,
        ErrorCode.ORCHESTRATION_TURN_WAITING: 409,
        ErrorCode.ORCHESTRATION_DEPENDENCY_UNAVAILABLE: 503,
        ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED: 502,
        ErrorCode.ORCHESTRATION_STEP_TIMEOUT: 504,
        ErrorCode.ORCHESTRATION_NOT_ANSWERABLE: 422,
        ErrorCode.CONFIG_NO_ENGINE: 400,
        ErrorCode.CONFIG_SCHEMA_REQUIRED: 400,
        ErrorCode.CONFIG_GRAMMAR_NOT_FOUND: 400,
        ErrorCode.CONFIG_INVALID: 400,
        ErrorCode.CONFIG_MODEL_NOT_FOUND: 404,
        ErrorCode.CONFIG_MODEL_CORRUPT: 500,
        ErrorCode.CONFIG_NO_SPACE: 507,
        ErrorCode.CONFIG_SOURCE_UNAVAILABLE: 503,
        ErrorCode.CONFIG_SOURCE_DENIED: 403,
        ErrorCode.CANCELLED_TIMEOUT: 504,
        ErrorCode.CANCELLED_SIGNAL: 499,
        ErrorCode.AUTH_MISSING: 401,
        ErrorCode.AUTH_INVALID: 401,
        ErrorCode.AUTH_EXPIRED: 401,
        ErrorCode.AUTH_DENIED: 403,
        ErrorCode.AUTH_POLICY: 403,
        ErrorCode.QUOTA_RATE: 429,
        ErrorCode.QUOTA_CONCURRENCY: 429,
        ErrorCode.QUOTA_BUDGET: 429,
        ErrorCode.QUOTA_STORAGE: 429,
        ErrorCode.GUARD_BLOCKED: 400,
    }


@pytest.mark.parametrize("code", ErrorCode)
def test_each_code_of_the_taxonomy_is_a_status_of_the_document_and_is_told(code):
    error = status.error_of(failure_of(code, "it is broken"))
    chat = the_document()["paths"]["/v1/chat/completions"]["post"]
    assert str(status_of(error)) in chat["responses"]
    told = error_of(error, "r1")
    message = told["message"].removeprefix("the model's answer: ")
    assert (told["code"], message, told["pagantic"]["request_id"]) == (code.value, "it is broken", "r1")


@pytest.mark.parametrize("code", [ErrorCode.CONSTRAINT_JSON_INVALID, ErrorCode.VALIDATION_RULE_FAILED])
def test_a_failure_of_the_models_answer_is_told_as_one(code):
    told = error_of(status.error_of(failure_of(code, "is no JSON")))
    assert (told["type"], told["message"]) == ("server_error", "the model's answer: is no JSON")


@pytest.mark.parametrize("cls", STATUS_OF_CLASS)
def test_each_class_of_errors_is_an_error_status(cls):
    assert 400 <= status_of(cls("x")) <= 599


def test_an_error_without_a_code_has_the_name_of_its_status():
    assert error_of(errors.NotFound("x"))["code"] == "NOT_FOUND"


def test_fields_of_the_hints_are_named_as_this_api_names_them():
    assert error_of(errors.InvalidRequest("hints.top_p is 2"))["message"] == "top_p is 2"


def test_details_and_causes_are_told():
    cause = failure_of(ErrorCode.INFERENCE_ENGINE_ERROR, "the engine failed")
    failure = failure_of(ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED, "x", details={"service": "inference"})
    told = error_of(errors.Internal(failure=failure.because_of(cause)))["pagantic"]
    assert told["details"] == {"service": "inference"}
    assert told["caused_by"] == [{"code": "INFERENCE_ENGINE_ERROR", "message": "the engine failed"}]


@pytest.mark.parametrize(
    ("error", "retried"),
    [
        (errors.Unavailable("x"), True),
        (errors.Overloaded("x"), True),
        (errors.Aborted("x"), True),
        (errors.Overloaded("x", code=ErrorCode.QUOTA_RATE), True),
        (errors.Overloaded("x", code=ErrorCode.QUOTA_BUDGET), False),
        (errors.Overloaded("x", code=ErrorCode.QUOTA_STORAGE, retry_after_s=60.0), False),
        (errors.Internal("x", code=ErrorCode.INFERENCE_ENGINE_ERROR), True),
        (errors.InvalidRequest("x"), False),
        (errors.DeadlineExceeded("x"), False),
        (errors.NotFound("x"), False),
    ],
)
def test_clients_are_told_whether_to_try_again(error, retried):
    assert is_retryable(error) is retried
    assert error_of(error)["pagantic"]["retryable"] is retried
    assert headers_of(error)["x-should-retry"] == str(retried).lower()


@pytest.mark.parametrize(("asked_s", "header"), [(None, None), (0.2, "1"), (1.0, "1"), (7.6, "8")])
def test_the_time_to_wait_is_whole_seconds_and_at_least_one(asked_s, header):
    assert headers_of(errors.Overloaded("x", retry_after_s=asked_s)).get("retry-after") == header


def test_an_unknown_caller_is_told_how_to_say_who_it_is():
    assert headers_of(errors.Unauthenticated("x"))["www-authenticate"] == "Bearer"
    assert "www-authenticate" not in headers_of(errors.PermissionDenied("x"))


@pytest.mark.parametrize(
    ("number", "kind"), [(405, "invalid_request_error"), (401, "authentication_error"), (500, "server_error")]
)
def test_a_refusal_has_the_form_of_an_error(number, kind):
    refused = error_of_refusal(Refusal(number, "no"))
    assert refused == {"message": "no", "type": kind, "param": None, "code": None}
