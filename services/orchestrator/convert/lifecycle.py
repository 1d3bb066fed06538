"""Converts lifecycle states, timestamps, experiment variants and guard reports to and from proto."""

from __future__ import annotations

from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.codec.fields import EnumCodec
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.guards.plugin import GuardStage
from services.orchestrator.core.execution.events import GuardActed
from services.orchestrator.core.guards.rules import GuardOutcome, GuardReport
from services.orchestrator.core.kernel.lifecycle import State
from services.orchestrator.core.model.request import ExperimentVariant

_PREFIX = "LIFECYCLE_STATE_"
_STATES = EnumCodec(execution_pb2.LifecycleState, State, _PREFIX, unknown=None)
_GUARD_STAGES = EnumCodec(event_pb2.GuardStage, GuardStage, "GUARD_STAGE_", unknown=GuardStage.INPUT)
_GUARD_OUTCOMES = EnumCodec(event_pb2.GuardOutcome, GuardOutcome, "GUARD_OUTCOME_", unknown=GuardOutcome.BLOCKED)


def state_to_proto(state: State | None) -> execution_pb2.LifecycleState.ValueType:
    """Encode a state, or leave it unset if it is None."""
    return _STATES.to_proto(state)


def state_from_proto(value: int) -> State | None:
    """Decode a state, or return None if it is unset. Raises InvalidRequest if the state is unknown."""
    state = _STATES.from_proto(value)
    if state is None and value != execution_pb2.LIFECYCLE_STATE_UNSPECIFIED:
        raise InvalidRequest(f"there is no state {value}: use one of {', '.join(_PREFIX + name for name in State)}")
    return state


def timestamp_to_proto(moment: datetime) -> Timestamp:
    """Encode a timestamp."""
    timestamp = Timestamp()
    timestamp.FromDatetime(moment)
    return timestamp


def variant_from_proto(variant: execution_pb2.ExperimentVariant) -> ExperimentVariant:
    """Decode a variant of an experiment."""
    return ExperimentVariant(variant.experiment, variant.variant)


def variant_to_proto(variant: ExperimentVariant) -> execution_pb2.ExperimentVariant:
    """Encode a variant of an experiment."""
    return execution_pb2.ExperimentVariant(experiment=variant.experiment, variant=variant.variant)


def guard_acted_to_proto(acted: GuardActed) -> event_pb2.GuardActed:
    """Encode a guard's report."""
    report = acted.report
    return event_pb2.GuardActed(
        guard=report.guard,
        stage=_GUARD_STAGES.to_proto(report.stage),
        outcome=_GUARD_OUTCOMES.to_proto(report.outcome),
        finding_count=report.findings,
        kinds=report.kinds,
    )


def guard_acted_from_proto(acted: event_pb2.GuardActed) -> GuardActed:
    """Decode a guard's report."""
    return GuardActed(
        GuardReport(
            acted.guard,
            _GUARD_STAGES.from_proto(acted.stage),
            _GUARD_OUTCOMES.from_proto(acted.outcome),
            acted.finding_count,
            tuple(acted.kinds),
        )
    )
