"""The recorder over a journal whose writes end when the test says."""

import asyncio

import pytest

from pagantic_common.telemetry.clock import SystemClock
from services.orchestrator.app.recording.recorder import Recorder
from services.orchestrator.core.execution.events import AttemptDiscarded, ContentDelta
from services.orchestrator.core.model.response import FinishReason, InferenceOutput, Response
from services.orchestrator.core.turn.answering import Inferred
from services.orchestrator.core.turn.run import State, Transition
from tests.support.journal_records import record


class Slow:
    """A journal that keeps the ends of its writes."""

    def __init__(self):
        self.ends = []

    def write(self, _write, *, can_wait=False):
        self.ends.append(asyncio.get_running_loop().create_future())
        return self.ends[-1]


async def tell(recorder, number):
    await recorder.emit(AttemptDiscarded(number, "x"))


async def test_nothing_is_given_to_the_journal_after_a_write_that_has_failed():
    journal = Slow()
    recorder = Recorder(journal, SystemClock(), record())
    await tell(recorder, 1)
    journal.ends[0].set_exception(OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):  # at once, before anyone was told
        await tell(recorder, 2)
    assert len(journal.ends) == 1


async def test_events_are_shown_in_their_order_once_all_before_them_are_stored():
    journal = Slow()
    recorder = Recorder(journal, SystemClock(), record())
    for number in (1, 2):
        await tell(recorder, number)
    watching = recorder.broadcast.watch()
    shown = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0)
    journal.ends[1].set_result(None)
    await asyncio.sleep(0)
    assert not shown.done()
    journal.ends[0].set_result(None)
    assert (await shown).sequence == 1
    assert (await anext(watching)).sequence == 2
    await watching.aclose()


async def test_an_outcome_that_has_just_been_stored_is_shown_when_it_is_settled():
    journal = Slow()
    recorder = Recorder(journal, SystemClock(), record())
    moved = Transition(State.VALIDATE, State.COMPLETE, 1, "")
    finishing = asyncio.ensure_future(recorder.finish([moved], Response("r", "s")))
    await asyncio.sleep(0)
    finishing.cancel()
    await asyncio.gather(finishing, return_exceptions=True)
    journal.ends[0].set_result(None)
    await recorder.settle()
    assert recorder.broadcast.is_ended


LARGE = Inferred(InferenceOutput("x" * 300_000, FinishReason.STOP))


@pytest.mark.parametrize(
    ("payload", "entries"), [(AttemptDiscarded(1, "x"), [LARGE]), (ContentDelta("x" * 300_000), [])]
)
async def test_a_run_waits_for_a_journal_that_is_behind_by_much_text(payload, entries):
    journal = Slow()
    recorder = Recorder(journal, SystemClock(), record())

    async def emit():
        await recorder.emit(payload, entries=entries)

    await tell(recorder, 1)
    for _ in range(3):
        await emit()
    late = asyncio.ensure_future(emit())
    await asyncio.sleep(0.01)
    assert not late.done(), "more than a million characters are not stored"
    for end in journal.ends[:-1] or journal.ends:
        end.set_result(None)
    await asyncio.wait_for(late, 1)
