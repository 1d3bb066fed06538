"""A timed service, and the snapshots of what it has spent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.ours import running_service

DECODE = "decode"
MASK = "mask"
WAIT = "wait for work"
_SNAPSHOT_S = 10.0
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the timed service has spent so far.

    Attributes:
        at_s: When this was.
        seconds: Time in each part of a step, without the parts within it.
        calls: How often each part was entered.
        processor_s: Processor time of the threads of each kind.
        drafted_tokens: Tokens that were guessed from the prompt.
        accepted_tokens: Those of them that were right.
    """

    at_s: float
    seconds: Mapping[str, float]
    calls: Mapping[str, int]
    processor_s: Mapping[str, float]
    drafted_tokens: int
    accepted_tokens: int

    def since(self, before: Snapshot) -> Snapshot:
        """Return what was spent since another snapshot."""
        return Snapshot(
            self.at_s - before.at_s,
            {part: seconds - before.seconds.get(part, 0.0) for part, seconds in self.seconds.items()},
            {part: count - before.calls.get(part, 0) for part, count in self.calls.items()},
            {kind: seconds - before.processor_s.get(kind, 0.0) for kind, seconds in self.processor_s.items()},
            self.drafted_tokens - before.drafted_tokens,
            self.accepted_tokens - before.accepted_tokens,
        )


class Times:
    """Asks a timed service for snapshots."""

    def __init__(self, process_id: int, file: Path) -> None:
        self._process_id = process_id
        self._file = file
        self._taken = 0

    async def take(self) -> Snapshot:
        """Return what was spent so far."""
        self._taken += 1
        os.kill(self._process_id, signal.SIGUSR1)
        async with asyncio.timeout(_SNAPSHOT_S):
            while len(lines := self._file.read_text(encoding="utf-8").splitlines()) < self._taken:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)  # another process writes the file
        return Snapshot(**json.loads(lines[-1]))


@contextmanager
def timed_service(settings: Mapping[str, str]) -> Iterator[tuple[str, Times]]:
    """Run an inference service whose steps are timed; yields its address."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times"
        file.touch()
        os.environ["TIMES_FILE"] = str(file)
        with running_service("inference", module="tests.bench.step.timed_service", **settings) as (address, process_id):
            yield address, Times(process_id, file)
