"""Events in words."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from pagantic.common.v1 import correlation_pb2, error_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic_common.client.tables import COLUMNS, describe_event, timeline_rows, timeline_table
from pagantic_common.codec.messages import duration_to_proto


def event_at(seconds, **fields):
    return event_pb2.ExecutionEvent(timestamp=Timestamp(seconds=seconds), **fields)


def test_offsets_count_from_the_first_event_and_causes_and_errors_are_named():
    failed = error_pb2.SystemError(code=error_pb2.ERROR_CODE_TOOL_TIMEOUT)
    caused = correlation_pb2.CorrelationContext(caused_by="call_1")
    first, last = timeline_rows(
        [
            event_at(100, sequence=1),
            event_at(102, sequence=2, error=failed, correlation=caused, duration=duration_to_proto(1.5)),
        ]
    )
    assert (first.offset_ms, first.duration_ms, first.error) == (0, None, "")
    assert (last.offset_ms, last.duration_ms, last.error, last.caused_by) == (2000, 1500, "TOOL_TIMEOUT", "call_1")


def test_a_transition_names_both_states():
    transition = event_pb2.LifecycleTransition(to=execution_pb2.LIFECYCLE_STATE_PREPARE, reason="admitted")
    setattr(transition, "from", execution_pb2.LIFECYCLE_STATE_INIT)
    assert describe_event(event_pb2.ExecutionEvent(transition=transition)) == "INIT -> PREPARE: admitted"


def test_every_kind_of_event_can_be_described():
    for field in event_pb2.ExecutionEvent.DESCRIPTOR.oneofs_by_name["event"].fields:
        event = event_pb2.ExecutionEvent()
        getattr(event, field.name).SetInParent()
        assert isinstance(describe_event(event), str)


def test_the_table_has_a_row_for_each_event_and_a_column_of_errors_only_when_there_is_one():
    fine = [event_at(1, action="[red]x"), event_at(2)]
    failed = event_at(3, error=error_pb2.SystemError(code=error_pb2.ERROR_CODE_TOOL_TIMEOUT))
    assert timeline_table(fine).row_count == 2
    assert [column.header for column in timeline_table(fine).columns] == list(COLUMNS[:-1])
    assert [column.header for column in timeline_table([*fine, failed]).columns] == list(COLUMNS)


def test_a_narrow_table_keeps_room_for_what_happened():
    headers = [column.header for column in timeline_table([event_at(1)], width=80).columns]
    assert headers == ["seq", "+ms", "action", "what", "took ms"]
