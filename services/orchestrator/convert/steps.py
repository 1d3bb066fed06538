"""Encodes the steps of recorded executions as proto."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.codec.errors import failure_to_proto
from pagantic_common.codec.messages import tool_call_to_proto, usage_to_proto
from pagantic_common.codec.validation import stage_report_to_proto, violation_to_proto
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.convert.inference import finish_reason_to_proto
from services.orchestrator.convert.plan import plan_to_proto, result_to_proto
from services.orchestrator.convert.response import candidate_to_proto, tool_record_to_proto
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.execution.progress import StepEnded
from services.orchestrator.core.kernel.command import Answer
from services.orchestrator.core.replaying.steps import Record, RecordedAnswer
from services.orchestrator.core.turn.answering import Enforced, Inferred, ToolsRan
from services.orchestrator.core.turn.deciding import Decided
from services.orchestrator.core.turn.ending import Failed
from services.orchestrator.core.turn.preparing import Planned
from services.orchestrator.core.turn.replicas import candidates_of
from services.orchestrator.core.turn.voting import Sampled


def steps_to_proto(record: Record, page_token: str, page_bytes: int) -> pb.ListStepsResponse:
    """Encode a page of an execution's steps, with at least one step.

    Raises InvalidRequest if the page token is unknown.
    """
    steps = _all_steps(record)
    first = 0
    if page_token:
        names = [step.name for step in steps]
        if page_token not in names:
            raise InvalidRequest(f"page_token {page_token[:40]!r} is not one that this service gave")
        first = names.index(page_token)
    page = pb.ListStepsResponse()
    for step in steps[first:]:
        if page.steps and page.ByteSize() + step.ByteSize() > page_bytes:
            page.next_page_token = step.name
            break
        page.steps.append(step)
    return page


def _all_steps(record: Record) -> Sequence[execution_pb2.ExecutionStep]:
    return [
        execution_pb2.ExecutionStep(name=step.path, step_result=result_to_proto(step.result))
        if isinstance(step, StepEnded)
        else _answer_to_proto(step)
        for step in record.steps
    ]


def _answer_to_proto(answer: RecordedAnswer) -> execution_pb2.ExecutionStep:
    step = execution_pb2.ExecutionStep(name=answer.name)
    encode = _ENCODERS.get(type(answer.gave))
    if encode is not None:
        step.MergeFrom(encode(answer.gave))
    return step


def _encode_prepared(prepared: Prepared) -> execution_pb2.ExecutionStep:
    context = prepared.context_message
    return execution_pb2.ExecutionStep(
        content=context.content if context is not None else "",
        system_prompt=prepared.system_prompt,
        offered_tools=[tool.name for tool in prepared.tools],
        history_count=len(prepared.history),
        usage=usage_to_proto(prepared.usage),
    )


def _encode_inferred(inferred: Inferred) -> execution_pb2.ExecutionStep:
    output = inferred.output
    return execution_pb2.ExecutionStep(
        content=output.content,
        reasoning=output.reasoning,
        tool_calls=[tool_call_to_proto(call) for call in output.tool_calls],
        finish_reason=finish_reason_to_proto(output.finish_reason),
        model=output.model,
        seed=output.seed,
        usage=usage_to_proto(output.usage + inferred.score_usage),
    )


def _encode_sampled(sampled: Sampled) -> execution_pb2.ExecutionStep:
    return execution_pb2.ExecutionStep(
        candidates=[candidate_to_proto(candidate) for candidate in candidates_of(sampled.replicas, None)],
        model=sampled.model,
        seed=sampled.seed,
        usage=usage_to_proto(sampled.usage),
    )


def _encode_tools(ran: ToolsRan) -> execution_pb2.ExecutionStep:
    return execution_pb2.ExecutionStep(tool_calls_made=[tool_record_to_proto(record) for record in ran.records])


def _encode_enforced(enforced: Enforced) -> execution_pb2.ExecutionStep:
    enforcement = enforced.enforcement
    return execution_pb2.ExecutionStep(
        content=enforcement.output,
        stages=[stage_report_to_proto(stage) for stage in enforcement.stages],
        violations=[violation_to_proto(violation) for violation in enforcement.violations],
        usage=usage_to_proto(enforcement.judge_usage),
    )


def _encode_planned(planned: Planned) -> execution_pb2.ExecutionStep:
    plan, usage = plan_to_proto(planned.plan), usage_to_proto(planned.usage)
    return execution_pb2.ExecutionStep(plan=plan, model=planned.model, usage=usage)


def _encode_decided(decided: Decided) -> execution_pb2.ExecutionStep:
    return execution_pb2.ExecutionStep(model=decided.model, usage=usage_to_proto(decided.usage))


def _encode_failed(failed: Failed) -> execution_pb2.ExecutionStep:
    return execution_pb2.ExecutionStep(error=failure_to_proto(failed.failure))


_ENCODERS: Mapping[type[Answer], Callable[[Any], execution_pb2.ExecutionStep]] = MappingProxyType(
    {
        Prepared: _encode_prepared,
        Inferred: _encode_inferred,
        Sampled: _encode_sampled,
        ToolsRan: _encode_tools,
        Enforced: _encode_enforced,
        Planned: _encode_planned,
        Decided: _encode_decided,
        Failed: _encode_failed,
    }
)
