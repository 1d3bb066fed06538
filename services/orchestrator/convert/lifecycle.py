"""Lifecycle states and moments <-> proto."""

from __future__ import annotations

from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.codec.enums import EnumCodec
from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.core.execution.lifecycle import State

_PREFIX = "LIFECYCLE_STATE_"
_STATES = EnumCodec(execution_pb2.LifecycleState, State, _PREFIX, unknown=None)


def state_to_proto(state: State | None) -> execution_pb2.LifecycleState.ValueType:
    """Encode a state; None is not set."""
    return _STATES.to_proto(state)


def state_from_proto(value: int) -> State | None:
    """Decode a state; None when it is not set. Raises InvalidRequest for an unknown state."""
    state = _STATES.from_proto(value)
    if state is None and value != execution_pb2.LIFECYCLE_STATE_UNSPECIFIED:
        raise InvalidRequest(f"there is no state {value}: use one of {', '.join(_PREFIX + one for one in State)}")
    return state


def timestamp_to_proto(moment: datetime) -> Timestamp:
    """Encode a moment."""
    timestamp = Timestamp()
    timestamp.FromDatetime(moment)
    return timestamp
