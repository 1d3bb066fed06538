"""When the engine is measured, what ends that, and what becomes of what was found; with scripted measurements."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import structlog

from pagantic_common.domain.errors import PreconditionFailed
from pagantic_common.testing.clock import FakeClock
from services.inference.app.tuning import MAX_DISTURBED, Pace, Tuner, TuningState
from services.inference.core.tuning import MAX_ROUNDS, MIN_ROUNDS, Round, untuned
from services.inference.ports import MeasuringFailed
from tests.unit.inference.test_tuning import BUSY, QUIET, scaled

PACE = Pace(idle_s=0.01, again_s=0.01, review_s=0.01)
APART = (0.0, 100.0, 0.0, 0.0)  # seconds of steps of short sequences
DEFAULTS = untuned(4)  # so that what is measured differs: 2 threads
FASTER_WITH_TWO = type(QUIET)({4: 40.0, 2: 20.0}, QUIET.flash_ms, QUIET.prompt_rates)
GOOD = Round(FASTER_WITH_TWO)
BUSY_ROUND = Round(BUSY, others_cores=1.0)


class ScriptedProber:
    """Gives the rounds of one script after the other, one script for each measurement; the last one again and again."""

    def __init__(self, *scripts, reasons=()):
        self.scripts = list(scripts)
        self.reasons = list(reasons)
        self.begun = self.closed = self.looks = 0
        self.hangs = asyncio.Event()

    async def why_not(self):
        self.looks += 1
        return self.reasons.pop(0) if self.reasons else ""

    async def rounds(self):
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        self.begun += 1
        try:
            for one in script:
                if one == "hang":
                    self.hangs.set()
                    await asyncio.Event().wait()
                if isinstance(one, Exception):
                    raise one
                yield one
                await asyncio.sleep(0)
        finally:
            self.closed += 1


class Store:
    def __init__(self, problem=""):
        self.kept = []
        self.problem = problem

    def save(self, tuning):
        self.kept.append(tuning)
        return self.problem


class World:
    def __init__(self, prober, **changes):
        self.applied = []
        self.refuses = False
        self.store = changes.pop("store", Store())
        self.in_use = asyncio.Event()
        self.prober = prober
        self.tuner = Tuner(
            DEFAULTS,
            **{
                "given": {},
                "prober": prober,
                "store": self.store,
                "in_use": self.in_use,
                "apply": self.apply,
                "clock": FakeClock(),
                "pace": PACE,
                **changes,
            },
        )

    async def apply(self, tuning):
        self.applied.append(tuning)
        if self.refuses:
            raise PreconditionFailed("memory is short")

    async def until(self, is_so):
        async with asyncio.timeout(60):
            while not is_so():  # noqa: ASYNC110 - anything may be waited for
                await asyncio.sleep(0.005)


@asynccontextmanager
async def running(prober, **changes):
    world = World(prober, **changes)
    task = asyncio.create_task(world.tuner.run())
    yield world
    assert not task.done() or world.tuner.note
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def is_measured(world):
    return lambda: world.tuner.state is TuningState.MEASURED


async def test_the_defaults_serve_until_rounds_agree_then_what_was_measured_is_applied_and_kept():
    async with running(ScriptedProber([GOOD] * 20)) as world:
        assert world.tuner.state is TuningState.DEFAULTS
        assert world.tuner.tuning.threads == 4
        await world.until(is_measured(world))
        assert [tuning.threads for tuning in world.applied] == [2]
        assert world.tuner.tuning.measured_at == "2026-01-01T00:00:00+00:00"
        assert [tuning and tuning.threads for tuning in world.store.kept] == [None, 2]
        assert world.prober.begun == world.prober.closed == 1


async def test_what_was_measured_beside_other_work_is_not_kept_and_a_quiet_machine_is_measured_later():
    busy = [BUSY_ROUND] * 20
    async with running(ScriptedProber(busy, busy, [GOOD] * 20)) as world:
        await world.until(is_measured(world))
        assert world.prober.begun == 3
        assert [tuning.threads for tuning in world.applied] == [2]


async def test_measuring_beside_other_work_ends_early_and_says_so():
    async with running(ScriptedProber([BUSY_ROUND] * MAX_DISTURBED + ["hang"])) as world:
        await world.until(lambda: world.prober.closed)
        assert "other processes use 1.0 cores" in world.tuner.note
        assert world.tuner.state is TuningState.DEFAULTS
        assert not world.applied


async def test_a_machine_that_is_not_steady_is_not_tuned():
    scattered = [Round(scaled(FASTER_WITH_TWO, 1.4**number)) for number in range(MAX_ROUNDS)]
    async with running(ScriptedProber([*scattered, "hang"])) as world:
        await world.until(lambda: world.prober.closed)
        assert "do not repeat" in world.tuner.note
        assert not world.applied


async def test_nothing_is_measured_where_a_look_finds_it_in_vain():
    async with running(ScriptedProber([GOOD] * 20, reasons=["busy", "busy"])) as world:
        await world.until(lambda: world.tuner.note == "busy")
        assert world.prober.begun == 0
        await world.until(is_measured(world))
        assert world.prober.looks == 3


async def test_a_request_ends_the_measuring_at_once_and_complete_rounds_count_when_it_goes_on():
    first = [GOOD] * (MIN_ROUNDS - 1) + ["hang"]
    async with running(ScriptedProber(first, [GOOD, "hang"])) as world:
        await world.prober.hangs.wait()
        assert world.tuner.state is TuningState.MEASURING
        world.in_use.set()
        await world.until(lambda: world.prober.closed == 1)
        await asyncio.sleep(5 * PACE.idle_s)
        assert world.prober.begun == 1  # the request runs still
        world.in_use.clear()
        await world.until(is_measured(world))
        assert world.prober.begun == 2


async def test_a_child_that_dies_is_told_of_and_the_defaults_stay():
    async with running(ScriptedProber([MeasuringFailed("it died")])) as world:
        await world.until(lambda: world.tuner.note == "it died")
        assert world.tuner.state is TuningState.DEFAULTS


async def test_what_was_kept_is_used_and_not_measured_again_until_asked_for():
    kept = untuned(3)
    async with running(ScriptedProber([GOOD] * 20), measured=kept) as world:
        await asyncio.sleep(10 * PACE.idle_s)
        assert (world.tuner.state, world.tuner.tuning.threads, world.prober.begun) == (TuningState.MEASURED, 3, 0)
        world.tuner.measure_again()
        assert world.tuner.state is not TuningState.MEASURED
        await world.until(is_measured(world))
        assert world.tuner.tuning.threads == 2


async def test_a_cache_that_cannot_be_written_is_not_measured_for_at_every_start_but_when_asked():
    async with running(ScriptedProber([GOOD] * 20), store=Store("/cache cannot be written")) as world:
        await asyncio.sleep(10 * PACE.idle_s)
        assert world.prober.looks == 0
        assert "/cache cannot be written" in world.tuner.note
        world.tuner.measure_again()
        await world.until(is_measured(world))
        assert world.tuner.note == "not kept for the next start"


async def test_settings_win_over_what_is_measured():
    async with running(ScriptedProber([GOOD] * 20), given={"threads": 1}) as world:
        await world.until(is_measured(world))
        assert world.tuner.tuning.threads == 1
        assert world.store.kept[-1].threads == 2  # so another start without the setting has what was measured


async def test_attention_follows_the_load_and_is_kept_for_the_next_start():
    load = []
    async with running(ScriptedProber([GOOD] * 20), load=lambda: tuple(load)) as world:
        await world.until(is_measured(world))
        assert not world.tuner.tuning.flash_attention
        load[:] = APART
        await world.until(lambda: world.tuner.tuning.flash_attention)
        assert [tuning.flash_attention for tuning in world.applied] == [False, True]
        assert world.store.kept[-1].flash_attention
        await asyncio.sleep(10 * PACE.review_s)
        assert len(world.applied) == 2
        load.clear()
        world.tuner.measure_again()
        await world.until(lambda: len(world.applied) == 3 and world.tuner.state is TuningState.MEASURED)
        assert not world.tuner.tuning.flash_attention


async def test_attention_that_the_engine_refuses_is_tried_once():
    load = []
    async with running(ScriptedProber([GOOD] * 20), load=lambda: tuple(load)) as world:
        await world.until(is_measured(world))
        world.refuses = True
        load[:] = APART
        await world.until(lambda: "cannot be used" in world.tuner.note)
        await asyncio.sleep(10 * PACE.review_s)
        assert [tuning.flash_attention for tuning in world.applied] == [False, True]
        assert not world.tuner.tuning.flash_attention


async def test_attention_that_is_set_follows_no_load():
    given = {"flash_attention": False}
    async with running(ScriptedProber([GOOD] * 20), load=lambda: APART, given=given) as world:
        await world.until(is_measured(world))
        await asyncio.sleep(10 * PACE.review_s)
        assert [tuning.flash_attention for tuning in world.applied] == [False]


async def test_measuring_in_vain_takes_a_small_share_of_the_time():
    class Expensive(ScriptedProber):
        async def rounds(self):
            clock.advance(1e6)
            async for one in super().rounds():
                yield one

    clock = FakeClock()
    async with running(Expensive([BUSY_ROUND] * 20), clock=clock) as world:
        await world.until(lambda: world.prober.closed)
        await asyncio.sleep(20 * PACE.idle_s)
        assert world.prober.begun == 1


async def test_where_nothing_can_be_measured_asking_says_why():
    async with running(None, note="the model decodes no text") as world:
        with pytest.raises(PreconditionFailed, match="the model decodes no text"):
            world.tuner.measure_again()


async def test_a_machine_that_is_busy_for_long_is_logged_once():
    reasons = [f"other processes use {cores} cores" for cores in (1.1, 1.2, 1.3)]
    with structlog.testing.capture_logs() as lines:
        async with running(ScriptedProber([GOOD] * 20, reasons=reasons)) as world:
            await world.until(is_measured(world))
    assert [line["reason"] for line in lines if line["event"].startswith("not measured")] == reasons[:1]
