"""Has the engine's threads spin long while other processes leave the machine alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pagantic_common.telemetry.logging import get_logger
from services.inference.adapters.machine import CpuClock, core_count, spare_cores
from services.inference.adapters.openmp import SpinSwitch
from services.inference.core.tuning.spinning import SpinRule
from services.inference.settings import AUTO, InferenceSettings

log = get_logger(__name__)

READING_S = 0.5


@asynccontextmanager
async def open_spinning(settings: InferenceSettings) -> AsyncIterator[None]:
    """Follow the load while this is open; a SPIN_COUNT that is set stays as it is."""
    if settings.spin_count != AUTO:
        yield
        return
    try:
        switch = SpinSwitch()
    except OSError as error:
        log.info("the engine's threads spin as OpenMP has it", because=str(error))
        yield
        return
    following = asyncio.create_task(_follow(switch, _spare_cores(settings)))
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait([following])
        # The sleeping team ends with this.
        switch.set_long(True)


async def _follow(switch: SpinSwitch, spare: int) -> None:
    """Switch until cancelled, from the short count on; an error ends the following, not the service."""
    rule = SpinRule()
    try:
        switch.set_long(False)
        while True:
            clock = CpuClock.read()
            await asyncio.sleep(READING_S)
            switch.set_long(rule.is_long(clock.others_cores() - spare))
    except Exception:
        log.exception("the spinning of threads no longer follows the load")


def _spare_cores(settings: InferenceSettings) -> int:
    threads = settings.threads
    if threads == AUTO:
        threads = core_count()
    return spare_cores(threads)
