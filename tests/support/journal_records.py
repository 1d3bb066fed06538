"""Records, writes and events of executions, as the tests of the journal store them."""

from dataclasses import replace

from pagantic_common.domain.calls.correlation import CorrelationContext
from pagantic_common.domain.messages import Message, Role
from pagantic_common.telemetry.clock import SystemClock
from services.orchestrator.core.execution.events import Event
from services.orchestrator.core.execution.replay import Admitted
from services.orchestrator.core.model.request import Mode, Request
from services.orchestrator.core.model.response import FinishReason, InferenceOutput, Response
from services.orchestrator.core.turn.answering import Inferred
from services.orchestrator.core.turn.run import State, Transition
from services.orchestrator.ports.journal import ExecutionRecord, Write
from tests.support.keys import execution

NOW = SystemClock().now()
SAID = Inferred(InferenceOutput("hello", FinishReason.STOP))
TURN = (Message(Role.USER, "hi"), Message(Role.ASSISTANT, "hello"))


def record(request_id="r", **fields):
    fields = {"session_id": "", "trace_id": "0" * 32, "mode": Mode.CHAT, "fingerprint": "f"} | fields
    return ExecutionRecord(request_id=request_id, started_at=NOW, state=State.INIT, entered_at=NOW, attempt=1, **fields)


def admitted(request_id="r", session_id=""):
    return Admitted(Request(request_id, Mode.CHAT, (Message(Role.USER, "hi"),), session_id=session_id))


def event(sequence):
    return Event(
        correlation=CorrelationContext(request_id="x"),
        sequence=sequence,
        timestamp=NOW,
        layer="orchestrator",
        action="lifecycle.transition",
        attempt=1,
        payload=Transition(None, State.INIT, 1, "admitted"),
    )


def happened(one, *sequences):
    return Write(one, events=tuple(event(sequence) for sequence in sequences))


def ended(one, *sequences, turn=(), used=None):
    response = Response(one.request_id, one.session_id, content="hello")
    done = replace(one, state=State.COMPLETE, response=response)
    return Write(done, tuple(event(sequence) for sequence in sequences), turn=turn, used=used)


async def admit(journal, request_id="r", *, takes_turn=False, **fields):
    one = record(request_id, **fields)
    return await journal.admit(one, admitted(request_id, one.session_id), takes_turn=takes_turn)


async def sequences(journal, request_id):
    return [one.sequence for one in await journal.timeline(execution(request_id))]
