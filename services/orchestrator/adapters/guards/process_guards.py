"""Runs guard plug-ins in worker processes with limits on time and memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from pagantic_common.domain.errors import Internal, InvalidRequest, PaganticError
from pagantic_common.guards.plugin import Finding, GuardTraits
from pagantic_common.guards.redaction import Window
from pagantic_common.workers.process_workers import ProcessWorkers
from pagantic_common.workers.replies import WorkFailed
from pagantic_common.workers.worker_process import WorkerLimits
from services.orchestrator.adapters.guards.guards_file import GUARDS_FILE, read_guards_file
from services.orchestrator.adapters.guards.work import describe, find, package_folders
from services.orchestrator.core.guards.rules import GuardAction, GuardRule
from services.orchestrator.ports.guards import GuardRunner, Guards

MEMORY_MIB = 512
QUEUE_CAPACITY = 256
SLACK_S = 1.0  # The rule's own timeout fires first; the process is killed later.


class ProcessGuards(GuardRunner):
    """Runs the plug-ins. Every worker process loads all of them."""

    def __init__(self, workers: ProcessWorkers, processes: int) -> None:
        self._workers = workers
        self._processes = processes

    async def find(self, rule: GuardRule, windows: Sequence[Window]) -> list[tuple[Finding, ...]]:
        """Return the findings of a plug-in for each text.

        Raises PaganticError, whose message never contains the text.
        """
        try:
            return await self._workers.run(find, rule.plugin, rule.options_json, windows)
        except WorkFailed as error:
            raise Internal(f"it raised an error: {_last_line(error)}") from None

    async def describe(self, rule: GuardRule) -> GuardTraits:
        """Make the guard in every process and return its traits. Raises InvalidRequest if the guard cannot be made."""
        made = [self._workers.run(describe, rule.plugin, rule.options_json) for _ in range(self._processes)]
        try:
            return (await asyncio.gather(*made))[0]
        except (WorkFailed, PaganticError) as error:
            reason = _last_line(error) if isinstance(error, WorkFailed) else str(error)
            raise InvalidRequest(f"guard {rule.name!r}: plug-in {rule.plugin!r} {reason}") from None


@asynccontextmanager
async def open_guards(path: Path | None) -> AsyncIterator[Guards | None]:
    """Yield the guards in a file; None if no path is given. Raises InvalidRequest if a guard is unusable."""
    if path is None:
        yield None
        return
    content = read_guards_file(path)
    slowest_s = max(rule.timeout_s for rule in content.rules)
    limits = WorkerLimits(
        processes=content.workers,
        time_s=slowest_s + SLACK_S,
        memory_mib=MEMORY_MIB,
        queue_capacity=QUEUE_CAPACITY,
        module=find.__module__,
        advice="send a shorter text, or raise timeout_s of the guard",
        folders=tuple(dict.fromkeys((*map(str, content.folders), *package_folders(content.rules)))),
    )
    async with ProcessWorkers(limits) as workers:
        runner = ProcessGuards(workers, content.workers)
        try:
            rules = tuple([replace(rule, traits=await runner.describe(rule)) for rule in content.rules])
            for rule in rules:
                _check(rule)
        except InvalidRequest as error:
            raise InvalidRequest(f"{GUARDS_FILE} {str(path)!r}: {error}") from None
        yield Guards(rules, runner)


def _check(rule: GuardRule) -> None:
    if rule.action is GuardAction.REDACT and (rule.traits.statements or not rule.traits.can_redact):
        raise InvalidRequest(f"guard {rule.name!r} judges whole texts: its action must be block, not redact")


def _last_line(error: WorkFailed) -> str:
    """Return only the type of an unexpected error, because its message may quote a checked text."""
    last = str(error).strip().rpartition("\n")[2]
    return last.partition(":")[0]
