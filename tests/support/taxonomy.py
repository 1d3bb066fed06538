"""The contract's table of failures, rows that provoke them, and how an answer is read."""

from collections.abc import Callable
from dataclasses import dataclass

import grpc
from google.rpc import error_details_pb2, status_pb2

from pagantic.common.v1 import error_pb2
from pagantic.orchestrator.v1 import execution_pb2
from tests.support.killing import wait_until

GONE = ("ORCHESTRATION_DEPENDENCY_UNAVAILABLE", "INFERENCE_MODEL_UNAVAILABLE")
REPLY = "reply"  # a normal reply with the error in it
IF_IDEMPOTENT = "if idempotent"
DETAILS_KEY = "grpc-status-details-bin"

# code without its prefix: category without _FAILURE, retryable, and how a service tells it that has it happen
TABLE = {
    "INFERENCE_ENGINE_ERROR": ("INFERENCE", True, "INTERNAL"),
    "INFERENCE_MODEL_UNAVAILABLE": ("INFERENCE", True, "UNAVAILABLE"),
    "INFERENCE_CONTEXT_EXCEEDED": ("INFERENCE", False, "INVALID_ARGUMENT"),
    "INFERENCE_MALFORMED_RESPONSE": ("INFERENCE", True, "INTERNAL"),
    "INFERENCE_OVERLOADED": ("INFERENCE", True, "RESOURCE_EXHAUSTED"),
    "INFERENCE_OUTPUT_TRUNCATED": ("INFERENCE", False, None),
    "TOOL_NOT_FOUND": ("TOOL", False, "NOT_FOUND"),
    "TOOL_INVALID_ARGUMENTS": ("TOOL", False, REPLY),
    "TOOL_EXECUTION_FAILED": ("TOOL", IF_IDEMPOTENT, REPLY),
    "TOOL_TIMEOUT": ("TOOL", IF_IDEMPOTENT, REPLY),
    "TOOL_UNAVAILABLE": ("TOOL", IF_IDEMPOTENT, REPLY),
    "TOOL_DENIED": ("TOOL", False, REPLY),
    "TOOL_OUTCOME_UNKNOWN": ("TOOL", False, REPLY),
    "CONSTRAINT_GRAMMAR_INVALID": ("CONSTRAINT", False, "INVALID_ARGUMENT"),
    "CONSTRAINT_GRAMMAR_REJECTED": ("CONSTRAINT", True, REPLY),
    "CONSTRAINT_SCHEMA_INVALID": ("CONSTRAINT", True, REPLY),
    "CONSTRAINT_JSON_INVALID": ("CONSTRAINT", True, REPLY),
    "CONSTRAINT_ENUM_UNRECOGNIZED": ("CONSTRAINT", True, REPLY),
    "CONSTRAINT_TOO_COMPLEX": ("CONSTRAINT", False, "INVALID_ARGUMENT"),
    "VALIDATION_RULE_FAILED": ("VALIDATION", True, REPLY),
    "VALIDATION_SEMANTIC_FAILED": ("VALIDATION", True, REPLY),
    "ORCHESTRATION_STEP_MISMATCH": ("ORCHESTRATION", False, "FAILED_PRECONDITION"),
    "ORCHESTRATION_ITERATION_LIMIT": ("ORCHESTRATION", False, None),
    "ORCHESTRATION_NO_CONSENSUS": ("ORCHESTRATION", False, None),
    "ORCHESTRATION_PLAN_REJECTED": ("ORCHESTRATION", False, "FAILED_PRECONDITION"),
    "ORCHESTRATION_DEPENDENCY_UNAVAILABLE": ("ORCHESTRATION", True, "UNAVAILABLE"),
    "ORCHESTRATION_DEPENDENCY_FAILED": ("ORCHESTRATION", True, None),
    "ORCHESTRATION_STEP_TIMEOUT": ("ORCHESTRATION", True, None),
    "ORCHESTRATION_NOT_ANSWERABLE": ("ORCHESTRATION", False, None),
    "ORCHESTRATION_TURN_WAITING": ("ORCHESTRATION", False, "FAILED_PRECONDITION"),
    "CONFIG_NO_ENGINE": ("CONFIGURATION", False, "INVALID_ARGUMENT"),
    "CONFIG_SCHEMA_REQUIRED": ("CONFIGURATION", False, None),
    "CONFIG_GRAMMAR_NOT_FOUND": ("CONFIGURATION", False, "INVALID_ARGUMENT"),
    "CONFIG_INVALID": ("CONFIGURATION", False, "INVALID_ARGUMENT"),
    "AUTH_POLICY": ("ACCESS", False, None),
    "GUARD_BLOCKED": ("ACCESS", False, None),
    "CANCELLED_TIMEOUT": ("CANCELLATION", False, "DEADLINE_EXCEEDED"),
    "CANCELLED_SIGNAL": ("CANCELLATION", False, "CANCELLED"),
}

# Codes of calls that are not let in, and have no response: whether to try again, and their status.
ACCESS = {
    "AUTH_MISSING": (False, "UNAUTHENTICATED"),
    "AUTH_INVALID": (False, "UNAUTHENTICATED"),
    "AUTH_EXPIRED": (False, "UNAUTHENTICATED"),
    "AUTH_DENIED": (False, "PERMISSION_DENIED"),
    "QUOTA_RATE": (True, "RESOURCE_EXHAUSTED"),
    "QUOTA_CONCURRENCY": (True, "RESOURCE_EXHAUSTED"),
    "QUOTA_BUDGET": (False, "RESOURCE_EXHAUSTED"),
}

# Codes of calls that find the storage of their tenant full; tests of the journal and of collections provoke them.
OF_STORAGE = {"QUOTA_STORAGE"}

# Codes that commands report of models that they pull, and no service; tests of pulls provoke them.
OF_COMMANDS = {
    "CONFIG_MODEL_NOT_FOUND",
    "CONFIG_MODEL_CORRUPT",
    "CONFIG_NO_SPACE",
    "CONFIG_SOURCE_UNAVAILABLE",
    "CONFIG_SOURCE_DENIED",
}


@dataclass(frozen=True)
class Row:
    """One way to a code: `provoke` gives the response, `ask` calls the service itself where it can be told there.

    `is_retryable` is for a failure that this way makes final, although the table says that a retry may help.
    """

    code: str
    how: str
    provoke: Callable
    ask: Callable | None = None
    is_idempotent: bool = False
    is_slow: bool = False
    is_retryable: bool | None = None

    @property
    def retryable(self):
        if self.is_retryable is not None:
            return self.is_retryable
        retryable = TABLE[self.code][1]
        return self.is_idempotent if retryable is IF_IDEMPOTENT else retryable


class Rows(list):
    """Rows, in the order of their functions."""

    def add(self, code, how, ask=None, **fields):
        """Keep a function of the world that returns a request and its response."""

        def keep(provoke):
            self.append(Row(code, how, provoke, ask, **fields))
            return provoke

        return keep


@dataclass(frozen=True)
class Answer:
    """What a service said: a status, or REPLY, with the reason and whether it says when to come back."""

    status: str
    reason: str = ""
    domain: str = ""
    has_retry: bool = False

    @property
    def text(self):
        return f"{self.status} {self.reason}{' RetryInfo' if self.has_retry else ''}".strip()


def told_by(call):
    """Make a call that fails and return what it says."""
    try:
        reply = call()
        if isinstance(reply, Answer):
            return reply
        if not hasattr(reply, "DESCRIPTOR"):
            reply = list(reply)[-1]
    except grpc.RpcError as error:
        return _answer_of(error)
    return Answer(REPLY, name_of(reply.error.code))


def _answer_of(error):
    info, has_retry = error_details_pb2.ErrorInfo(), False
    for key, value in error.trailing_metadata() or ():
        for detail in status_pb2.Status.FromString(value).details if key == DETAILS_KEY else ():
            detail.Unpack(info)
            has_retry = has_retry or detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR)
    return Answer(error.code().name, info.reason, info.domain, has_retry)


def name_of(code):
    return error_pb2.ErrorCode.Name(code).removeprefix("ERROR_CODE_")


def mode_of(work):
    return execution_pb2.Mode.Name(work.mode).removeprefix("MODE_")


def run(stub, work):
    """Run a request; returns it with its response."""
    return work, stub.Execute(work, timeout=100)


def settled(stub, make, mend=lambda: None):
    """Run requests until one finds the neighbour that has just come (back); returns it with its response.

    `mend` starts the neighbour again: one that is about to end may still serve when it is looked at.
    """

    def attempt():
        mend()
        work, response = run(stub, make())
        return None if name_of(response.error.code) in GONE else (work, response)

    return wait_until(attempt, "the neighbour is used")
