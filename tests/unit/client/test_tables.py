"""Events in words."""

from __future__ import annotations

import io

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console

from pagantic.common.v1 import correlation_pb2, error_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2, usage_total_pb2
from pagantic_common.client.descriptions import count_of, describe_citation, describe_votes
from pagantic_common.client.event_descriptions import _DESCRIPTIONS, describe_event
from pagantic_common.client.tables import COLUMNS, timeline_rows, timeline_table, usage_table
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
    transition = event_pb2.LifecycleTransition(to_state=execution_pb2.LIFECYCLE_STATE_PREPARE, reason="admitted")
    transition.from_state = execution_pb2.LIFECYCLE_STATE_INIT
    assert describe_event(event_pb2.ExecutionEvent(transition=transition)) == "INIT -> PREPARE: admitted"


def test_every_kind_of_event_can_be_described():
    for field in event_pb2.ExecutionEvent.DESCRIPTOR.oneofs_by_name["event"].fields:
        event = event_pb2.ExecutionEvent()
        getattr(event, field.name).SetInParent()
        assert isinstance(describe_event(event), str)
        assert field.name in _DESCRIPTIONS


def test_the_table_has_a_row_for_each_event_and_a_column_of_errors_only_when_there_is_one():
    fine = [event_at(1, action="[red]x"), event_at(2)]
    failed = event_at(3, error=error_pb2.SystemError(code=error_pb2.ERROR_CODE_TOOL_TIMEOUT))
    assert timeline_table(fine).row_count == 2
    assert [column.header for column in timeline_table(fine).columns] == list(COLUMNS[:-1])
    assert [column.header for column in timeline_table([*fine, failed]).columns] == list(COLUMNS)


def rendered(table, width):
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def test_a_narrow_table_keeps_layer_and_cause():
    caused = correlation_pb2.CorrelationContext(caused_by="inference-2")
    events = [
        event_at(1, layer="constraint", action="validation.stage", correlation=caused),
        event_at(1, layer="inference", action="inference.start"),
    ]
    shown = rendered(timeline_table(events, width=80), 80)
    assert "constraint: validation.stage" in shown
    assert "caused by inference-2" in " ".join(shown.split())
    assert "inference: inference.start" not in shown


def test_nothing_in_a_table_is_markup_or_steers_the_terminal():
    events = [event_at(1, action="[red]x[/red]", layer="\x1b[2Jorchestrator\x07")]
    shown = rendered(timeline_table(events, width=200), 200)
    assert "[red]x[/red]" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown


@pytest.mark.parametrize(("number", "words"), [(0, "0 chunks"), (1, "1 chunk"), (2, "2 chunks")])
def test_a_count_has_its_plural(number, words):
    assert count_of(number, "chunk") == words


def test_votes_are_a_tally():
    values = ['{"a":1}', '{"a":2}', '{"a":1}']
    candidates = [execution_pb2.VoteCandidate(structured_output_json=value) for value in values]
    response = execution_pb2.SystemResponse(candidates=candidates, confidence=2 / 3)
    assert describe_votes(response) == 'votes: {"a":1} 2, {"a":2} 1; confidence 0.67'


def test_usage_without_prices_has_no_cost():
    total = usage_total_pb2.UsageTotal(model="m", requests=1)
    shown = rendered(usage_table([total]), 120)
    assert "0.0000" not in shown
    assert "(none)" in shown
    assert "subject" not in shown
    named = usage_total_pb2.UsageTotal(model="m", subject="ci")
    assert "ci" in rendered(usage_table([total, named]), 120)


def test_a_sum_shows_the_keys_it_was_made_by():
    total = usage_total_pb2.UsageTotal(subject="ci", requests=3)
    by_subject = rendered(usage_table([total], ["subject"]), 120)
    assert "ci" in by_subject
    assert not {"session", "model", "(none)"} & set(by_subject.split())
    of_tenant = rendered(usage_table([usage_total_pb2.UsageTotal(requests=3)], ["tenant"]), 120)
    assert of_tenant.split()[:2] == ["requests", "prompt"]
    assert "(none)" in rendered(usage_table([usage_total_pb2.UsageTotal(model="m")], ["model", "session"]), 120)


def test_a_citation_is_described_with_its_place():
    citation = execution_pb2.Citation(source=2, document="a.pdf", page=4, start=10, end=18, quote="red\nhats")
    assert describe_citation(citation) == '[2] a.pdf, page 4, characters 10 to 18: "red hats"'
    citation.page = 0
    assert describe_citation(citation).startswith("[2] a.pdf, characters 10")
