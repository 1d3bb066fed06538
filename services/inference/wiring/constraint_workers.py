"""The processes that try constraints before the service builds them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pagantic_common.grammar.engine_text import STACK_BYTES
from pagantic_common.workers.process_workers import ProcessWorkers
from pagantic_common.workers.worker_process import WorkerLimits
from services.inference.adapters import constraint_trial
from services.inference.adapters.llguidance_constraints import Workers
from services.inference.settings import InferenceSettings

MAX_CONSTRAINT_MIB = 512  # memory of a worker that builds a constraint; the built constraint has its own bound


@asynccontextmanager
async def open_workers(settings: InferenceSettings) -> AsyncIterator[Workers]:
    """Start the workers; threads that start later have the stack that building a constraint needs."""
    threading.stack_size(STACK_BYTES)
    limits = WorkerLimits(
        settings.constraint_workers,
        settings.max_constraint_s,
        MAX_CONSTRAINT_MIB,
        settings.queue_capacity + settings.max_running,
        constraint_trial.__name__,
    )
    async with ProcessWorkers(limits) as workers:
        yield workers
