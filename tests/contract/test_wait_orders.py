"""Signals, waits, times, parkings, crashes and ends in every order, by two orchestrators, over months."""

import asyncio
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagantic_common.domain.errors import Conflict, PreconditionFailed
from pagantic_common.testing.clock import FakeClock
from services.orchestrator.adapters.journal.sql_journal import SqlJournal
from services.orchestrator.core.execution.wait import Decision, Resolution, Signal, Wait, WaitKind, digest_of
from services.orchestrator.ports.journal import Durability
from tests.support.databases import sqlite_url
from tests.support.examples import examples
from tests.support.journal_records import admit, ended, record
from tests.support.keys import execution

KEY = execution("r")
WAITS = ("plan/a", "plan/b")
DAY_S = 86_400.0
OPERATIONS = ("signal", "send again", "begin", "take", "pass", "park", "claim", "crash", "end")


def signal_of(signal_id, payload_json):
    return Signal(signal_id, "go", payload_json, digest_of("go", payload_json))


class Life:
    """One execution in the journal of two owners, and what must be true of it."""

    def __init__(self, journals, clock):
        self.journals, self.clock = journals, clock
        self.owner = journals[0]
        self.sent, self.taken, self.open = [], [], {}
        self.is_parked = self.is_interrupted = self.has_ended = False

    async def do(self, operation, journal, number):
        await getattr(self, f"_{operation.replace(' ', '_')}")(journal, number)
        await self.check()

    async def _signal(self, journal, _number):
        signal = signal_of(f"s{len(self.sent)}", str(len(self.sent)))
        if self.has_ended:
            with pytest.raises(PreconditionFailed):
                await journal.add_signal(KEY, signal)
            return
        await journal.add_signal(KEY, signal)
        self.sent.append(signal)

    async def _send_again(self, journal, number):
        if not self.sent:
            return
        signal = self.sent[number % len(self.sent)]
        await journal.add_signal(KEY, signal)
        with pytest.raises(Conflict):
            await journal.add_signal(KEY, signal_of(signal.id, "other"))

    @property
    def _runs(self):
        return not (self.is_parked or self.is_interrupted or self.has_ended)

    async def _begin(self, _journal, number):
        if not self._runs:
            return
        now = self.clock.now()
        until = now + timedelta(days=1 + number)
        wait = Wait("r", WAITS[number % 2], WaitKind.SIGNAL, now, until, "go")
        stored = await self.owner.begin_wait(KEY, wait)
        if wait.id not in self.open:
            self.open[wait.id] = stored
        assert stored.expires_at == self.open[wait.id].expires_at, "a wait keeps its time"

    async def _take(self, _journal, number):
        """End a wait as the effect does: by the next signal, or by its time."""
        wait = self.open.get(WAITS[number % 2])
        if not self._runs or wait is None or wait.resolution is not None:
            return
        signal = await self.owner.next_signal(KEY, "go")
        if signal is not None:
            resolution = Resolution(
                Decision.SIGNALLED, self.clock.now(), payload_json=signal.payload_json, signal_id=signal.id
            )
            found = await self.owner.take_signal(KEY, wait.id, resolution)
            is_first = wait.id == min(key for key, other in self.open.items() if other.resolution is None)
            assert (found.resolution is not None) == is_first
            if is_first:
                self.taken.append(signal)
        elif wait.has_expired(self.clock.now()):
            found = await self.owner.resolve_wait(KEY, wait.id, Resolution(Decision.EXPIRED, wait.expires_at))
        else:
            return
        self.open[wait.id] = found

    async def _pass(self, _journal, number):
        self.clock.advance((1 + number) * DAY_S)

    async def _park(self, _journal, _number):
        waits = [wait for wait in self.open.values() if wait.resolution is None]
        if not self._runs or not waits:
            return
        wakes_at = min(wait.expires_at for wait in waits)
        self.is_parked = await self.owner.park(KEY, wakes_at, [wait.id for wait in waits])
        assert self.is_parked == (len(self.taken) == len(self.sent)), "a kept signal prevents the parking alone"

    async def _claim(self, journal, _number):
        claimed = await journal.claim(KEY)
        assert claimed == (self.is_parked or self.is_interrupted)
        if claimed:
            self.owner, self.is_parked, self.is_interrupted = journal, False, False

    async def _crash(self, _journal, _number):
        if self._runs:
            await self.owner.release([KEY])
            self.is_interrupted = True

    async def _end(self, _journal, number):
        if self._runs and number == 0:
            await self.owner.write(ended(record("r")))
            self.has_ended = True

    async def check(self):
        assert self.taken == self.sent[: len(self.taken)], "in the order in which they were sent, each once"
        kept = await self.journals[1].next_signal(KEY, "go")
        assert kept == (self.sent[len(self.taken)] if len(self.taken) < len(self.sent) else None), "none is lost"
        waits = [wait for wait in self.open.values() if wait.resolution is None]
        is_due = self.is_parked and (kept is not None or min(wait.expires_at for wait in waits) <= self.clock.now())
        assert await self.journals[1].due(9) == ([KEY] if is_due else [])


STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 1), st.integers(0, 3)), max_size=40)


@settings(max_examples=examples(200), deadline=None)
@given(STEPS)
def test_no_order_loses_a_signal_or_wakes_without_a_reason(steps):
    async def live():
        clock = FakeClock()
        with tempfile.TemporaryDirectory() as folder:
            url = sqlite_url(Path(folder) / "journal.sqlite3")
            journals = [
                SqlJournal(url, owner=owner, durability=Durability.PROCESS, clock=clock) for owner in ("a", "b")
            ]
            for journal in journals:
                await journal.open()
            try:
                await admit(journals[0], "r")
                life = Life(journals, clock)
                for operation, owner, number in steps:
                    await life.do(operation, journals[owner], number)
            finally:
                for journal in journals:
                    await journal.close()

    asyncio.run(live())
