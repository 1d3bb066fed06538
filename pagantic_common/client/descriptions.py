"""Describes responses and their parts, each on one line."""

from __future__ import annotations

from collections import Counter

from pagantic.common.v1 import error_pb2, message_pb2, usage_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2, plan_pb2
from pagantic_common.codec.fields import name_of

MAX_RESULT_CHARS = 240
# These codes warn that an answer was truncated: at the token limit, or at the byte limit.
TRUNCATED, TOO_LARGE = "output_truncated", "output_too_large"


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, as in `1 chunk` and `2 chunks`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}s"


def error_code_name(code: error_pb2.ErrorCode.ValueType) -> str:
    """Return a code's name without its prefix. UNSPECIFIED represents an error without a code."""
    return name_of(error_pb2.ErrorCode, code, "ERROR_CODE_")


def describe_usage(usage: usage_pb2.TokenUsage) -> str:
    """Return a description of the usage on one line."""
    text = (
        f"{count_of(usage.prompt_tokens, 'prompt token')} ({usage.cached_prompt_tokens} cached), "
        f"{count_of(usage.output_tokens, 'output token')}"
    )
    if usage.output_tokens == 0:
        return text
    return f"{text}, decoded at {usage.tokens_per_second:.0f} tokens/s"


def describe_outcome(response: execution_pb2.SystemResponse) -> str:
    """Return a line with a response's id, guarantee, finish reason and cost."""
    parts = [f"request {response.request_id}"]
    if response.structured_output_json and response.validation.guarantee:
        parts.append(f"guarantee {guarantee_name(response.validation.guarantee)}")
    if response.finish_reason == generation_pb2.FINISH_REASON_LENGTH:
        parts.append("cut at the limit of tokens")
    elif response.finish_reason:
        parts.append(f"finish reason {finish_reason_name(response.finish_reason)}")
    return "; ".join([*parts, describe_usage(response.token_usage)])


def describe_tool_call(call: execution_pb2.ToolCallRecord) -> str:
    """Return a tool call with its arguments and its result, shortened to a line or two."""
    result = " ".join(call.result.split())
    if len(result) > MAX_RESULT_CHARS:
        result = f"{result[:MAX_RESULT_CHARS]} …"
    if call.is_error:
        result = f"failed, {error_code_name(call.error_code)}: {result}"
    return f"tool {call.name}({call.arguments_json}) -> {result}"


def describe_citation(citation: execution_pb2.Citation) -> str:
    """Return a line with a citation's number, its document and position in the document, and its quote."""
    page = ""
    if citation.page:
        page = f", page {citation.page}"
    quote = " ".join(citation.quote.split())
    return f'[{citation.source}] {citation.document}{page}, characters {citation.start} to {citation.end}: "{quote}"'


def describe_step(step: plan_pb2.StepResult) -> str:
    """Return a line with the name, kind, outcome and duration of a plan's step."""
    outcome = (step.output.WhichOneof("value") or "nothing").replace("_", " ")
    if step.HasField("error"):
        outcome = f"failed: {step.error.message}"
    return f"step {step.name} ({step.kind}) -> {outcome}, {step.duration.ToMilliseconds()} ms"


def describe_votes(response: execution_pb2.SystemResponse) -> str:
    """Return a line with the values of the candidates, their vote counts and the confidence."""
    votes = "votes: " + ", ".join(f"{value} {count}" for value, count in vote_counts(response))
    if response.HasField("confidence"):
        votes += f"; confidence {response.confidence:.2f}"
    return votes


def vote_counts(response: execution_pb2.SystemResponse) -> list[tuple[str, int]]:
    """Return the values of the candidates with their vote counts, the most votes first."""
    return Counter(map(_value_of, response.candidates)).most_common()


def _value_of(candidate: execution_pb2.VoteCandidate) -> str:
    if candidate.HasField("error"):
        return "no answer"
    return candidate.structured_output_json or candidate.content


def guarantee_name(guarantee: contract_pb2.Guarantee.ValueType) -> str:
    """Return a guarantee's name without its prefix."""
    return name_of(contract_pb2.Guarantee, guarantee, "GUARANTEE_")


def finish_reason_name(reason: generation_pb2.FinishReason.ValueType) -> str:
    """Return a finish reason's name in lower case, without its prefix."""
    return name_of(generation_pb2.FinishReason, reason, "FINISH_REASON_").lower()


def state_name(state: execution_pb2.LifecycleState.ValueType) -> str:
    """Return a state's name without its prefix."""
    return name_of(execution_pb2.LifecycleState, state, "LIFECYCLE_STATE_")


def role_name(role: message_pb2.Role.ValueType) -> str:
    """Return a role's name in lower case, without its prefix."""
    return name_of(message_pb2.Role, role, "ROLE_").lower()


def mode_name(mode: execution_pb2.Mode.ValueType) -> str:
    """Return a mode's name without its prefix."""
    return name_of(execution_pb2.Mode, mode, "MODE_")
