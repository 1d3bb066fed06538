"""What the system says afterwards of the calls that were made: nothing may be lost, doubled or changed."""

from __future__ import annotations

from collections import Counter

from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import NotFound
from tests.soak.replicas.calls import STREAMED

ENDED = {
    execution_pb2.LIFECYCLE_STATE_COMPLETE,
    execution_pb2.LIFECYCLE_STATE_ERROR,
    execution_pb2.LIFECYCLE_STATE_CANCELLED,
}


async def check_calls(client, calls):
    """Yield a line for each fault; notes in the calls how often they were continued and discarded."""
    for call in calls:
        try:
            execution = await client.get_execution(call.request_id)
        except NotFound:
            if call.is_acknowledged or not call.error:
                yield f"lost: {call.kind} {call.request_id} was acknowledged and is not known"
            continue
        if execution.state.current not in ENDED:
            yield f"lost: {call.kind} {call.request_id} is acknowledged and has not ended"
        if not call.error:
            stored = execution.response.content or execution.response.structured_output_json
            if stored != call.content:
                yield f"{call.kind} {call.request_id}: {call.content!r} was answered, and {stored!r} is stored"
            # After another sending the text before it is not sent again.
            if call.kind in STREAMED and not call.refusals and call.streamed != call.content:
                yield f"{call.kind} {call.request_id}: {call.streamed!r} was streamed of {call.content!r}"
        await _count_events(client, call)


async def _count_events(client, call):
    for event in await client.timeline(call.request_id):
        call.continued += event.HasField("inference_continued")
        call.discarded += event.HasField("attempt_discarded")


async def check_sessions(client, calls):
    """Yield a line for each conversation whose turns are not those that were answered, in their order."""
    sessions = {}
    for call in calls:
        if call.session_id:
            sessions.setdefault(call.session_id, []).append(call)
    for session_id, turns in sessions.items():
        answered = [turn for turn in turns if not turn.error]
        if not answered:
            continue
        messages = (await client.get_session(session_id)).messages
        asked = [message for message in messages if message.role == message_pb2.ROLE_USER]
        said = [message.content for message in messages if message.role == message_pb2.ROLE_ASSISTANT]
        order = [turn.request_id[:8] for turn in answered]
        kept = [name for message in asked for name in order if name in message.content]
        if kept != order:
            yield f"session {session_id}: its turns {order} are stored as {kept}"
        if len(answered) == len(turns) and said != [turn.content for turn in answered]:
            yield f"session {session_id}: its answers are not those that were given"


def check_tool_runs(runs_file, calls):
    """Yield a line for each call of a tool that ran twice, or never though its call was answered."""
    lines = runs_file.read_text().splitlines() if runs_file.exists() else []
    for line, count in Counter(lines).items():
        if count > 1:
            yield f"duplicate: {count} runs of {line}"
    run = {line.split()[0] for line in lines}
    for call in calls:
        if call.kind in ("plan", "tool") and not call.error and call.request_id not in run:
            yield f"lost: the tool of {call.kind} {call.request_id} did not run"
