"""Events, responses and their parts in words, as one line each."""

from __future__ import annotations

from collections import Counter

from google.protobuf.message import Message

from pagantic.common.v1 import error_pb2, usage_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2, plan_pb2

MAX_RESULT_CHARS = 240
HASH_DIGITS = 8


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, as in `1 chunk` and `2 chunks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def error_code_name(code: error_pb2.ErrorCode.ValueType) -> str:
    """Return a code's name without its prefix; UNSPECIFIED is what is outside the taxonomy."""
    return error_pb2.ErrorCode.Name(code).removeprefix("ERROR_CODE_")


def describe_usage(usage: usage_pb2.TokenUsage) -> str:
    """Return usage as one line."""
    return (
        f"{count_of(usage.prompt_tokens, 'prompt token')} ({usage.cached_prompt_tokens} cached), "
        f"{count_of(usage.output_tokens, 'output token')}, decoded at {usage.tokens_per_second:.0f} tokens/s"
    )


def describe_outcome(response: execution_pb2.SystemResponse) -> str:
    """Return how a response came about and what it cost."""
    parts = [f"request {response.request_id}"]
    if response.structured_output_json and response.validation.guarantee:
        guarantee = contract_pb2.Guarantee.Name(response.validation.guarantee).removeprefix("GUARANTEE_")
        parts.append(f"guarantee {guarantee}")
    if response.finish_reason == generation_pb2.FINISH_REASON_LENGTH:
        parts.append("cut at the limit of tokens")
    elif response.finish_reason:
        parts.append(f"finish reason {_finish_reason_name(response.finish_reason)}")
    return "; ".join([*parts, describe_usage(response.token_usage)])


def describe_tool_call(call: execution_pb2.ToolCallRecord) -> str:
    """Return a tool call with its arguments and its result, cut to a line or two."""
    result = " ".join(call.result.split())
    if len(result) > MAX_RESULT_CHARS:
        result = f"{result[:MAX_RESULT_CHARS]} …"
    failed = f"failed, {error_code_name(call.error_code)}: " if call.is_error else ""
    return f"tool {call.name}({call.arguments_json}) -> {failed}{result}"


def describe_step(step: plan_pb2.StepResult) -> str:
    """Return a plan's step and what it gave."""
    given = (step.output.WhichOneof("value") or "nothing").replace("_", " ")
    outcome = f"failed: {step.error.message}" if step.HasField("error") else given
    return f"step {step.name} ({step.kind}) -> {outcome}, {step.duration.ToMilliseconds()} ms"


def describe_votes(response: execution_pb2.SystemResponse) -> str:
    """Return the values that were voted for, each with its votes, and the confidence."""
    values = [
        "no answer" if candidate.HasField("error") else candidate.structured_output_json or candidate.content
        for candidate in response.candidates
    ]
    tally = ", ".join(f"{value} {votes}" for value, votes in Counter(values).most_common())
    confidence = f"; confidence {response.confidence:.2f}" if response.HasField("confidence") else ""
    return f"votes: {tally}{confidence}"


def describe_event(event: event_pb2.ExecutionEvent) -> str:  # noqa: C901, PLR0911, PLR0912 - an arm for each kind
    """Return an event's particulars as one line."""
    match event.WhichOneof("event"):
        case "transition":
            return _describe_transition(event.transition)
        case "inference_start":
            return _describe_inference_start(event.inference_start)
        case "inference_end":
            end = event.inference_end
            return f"{end.tokens_in} in, {end.tokens_out} out, {_finish_reason_name(end.finish_reason)}"
        case "tool_start":
            return f"{event.tool_start.tool_name} ({event.tool_start.tool_call_id})"
        case "tool_end":
            tool_end = event.tool_end
            return f"{tool_end.tool_name} {'ok' if tool_end.success else error_code_name(tool_end.error_code)}"
        case "context_retrieved":
            found = event.context_retrieved
            return f"{found.collection}: {_describe_chunks(found)}"
        case "repair_applied":
            return f"{_stage_name(event.repair_applied.stage)}: {'; '.join(event.repair_applied.repairs)}"
        case "validation_stage":
            return _describe_stage(event.validation_stage.report)
        case "vote_cast":
            vote = event.vote_cast
            choice = "abstains" if vote.abstained else f"votes for value #{vote.value_hash[:HASH_DIGITS]}"
            return f"replica {vote.replica_index} {choice}"
        case "step_start":
            return f"{event.step_start.name} ({event.step_start.kind})"
        case "step_end":
            return f"{event.step_end.name} ({event.step_end.kind}) {'ok' if event.step_end.success else 'failed'}"
        case "attempt_discarded":
            return f"attempt {event.attempt_discarded.attempt}: {event.attempt_discarded.reason}"
        case "resumed":
            return f"{count_of(event.resumed.completed_steps, 'step')} had ended"
        case "completed":
            return describe_usage(event.completed.response.token_usage)
        case "content_delta" | "reasoning_delta" as kind:
            delta: Message = getattr(event, kind)
            return str(getattr(delta, "text", ""))
        case _:
            return ""


def _describe_transition(transition: event_pb2.LifecycleTransition) -> str:
    target = state_name(transition.to_state)
    source = state_name(transition.from_state)
    reason = f": {transition.reason}" if transition.reason else ""
    return f"{source} -> {target}{reason}" if source != "UNSPECIFIED" else f"{target}{reason}"


def _describe_stage(report: contract_pb2.StageReport) -> str:
    outcome = contract_pb2.StageOutcome.Name(report.outcome).removeprefix("STAGE_OUTCOME_").lower()
    reasons = "; ".join([*report.reasons, *(violation.message for violation in report.violations)])
    return f"{_stage_name(report.stage)} {outcome}{': ' + reasons if reasons else ''}"


def _describe_inference_start(start: event_pb2.InferenceStart) -> str:
    parts = [count_of(start.message_count, "message"), count_of(start.tool_defs_count, "tool")]
    parts += ["schema"] * start.schema_present + ["grammar"] * start.grammar_present
    return ", ".join(parts)


def _describe_chunks(found: event_pb2.ContextRetrieved) -> str:
    # A plan's retrieve step counts no tokens.
    tokens = f", {count_of(found.token_count, 'token')}" if found.token_count else ""
    return f"{count_of(found.chunk_count, 'chunk')}{tokens}"


def _finish_reason_name(reason: generation_pb2.FinishReason.ValueType) -> str:
    return generation_pb2.FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()


def _stage_name(stage: contract_pb2.Stage.ValueType) -> str:
    return contract_pb2.Stage.Name(stage).removeprefix("STAGE_").lower()


def state_name(state: execution_pb2.LifecycleState.ValueType) -> str:
    """Return a state's name without its prefix."""
    return execution_pb2.LifecycleState.Name(state).removeprefix("LIFECYCLE_STATE_")
