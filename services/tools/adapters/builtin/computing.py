"""The tools that only compute, with limits on time and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pagantic_common.domain.clock import Clock
from pagantic_common.domain.messages import ToolDefinition, ToolFailed, ToolSafety
from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.workers.process_workers import ProcessWorkers
from pagantic_common.workers.worker_process import WorkerLimits
from services.tools.adapters.builtin.confined import run_confined
from services.tools.adapters.builtin.parameters import object_schema
from services.tools.core.builtin.arithmetic import EXPRESSION_PATTERN, MAX_EXPRESSION_CHARS, evaluate, format_number
from services.tools.core.builtin.json_query import MAX_DOCUMENT_BYTES, MAX_QUERY_CHARS, query_json
from services.tools.ports import Report, Tool, make_places

JSON_PROCESSES = 1
MAX_JSON_S = 1.0
MAX_JSON_MIB = 64


class CalculatorTool:
    """Computes an arithmetic expression."""

    definition = ToolDefinition(
        name="calculator",
        description=(
            "Computes an arithmetic expression exactly. Use it for every calculation. Operators: + - * / // % ** and "
            "parentheses; functions: sqrt abs round min max floor ceil; constants: pi e."
        ),
        parameters_json=object_schema(
            ("expression",),
            expression={
                "type": "string",
                "description": "the expression, for example (2 + 3) * 4",
                "minLength": 1,
                "maxLength": MAX_EXPRESSION_CHARS,
                "pattern": EXPRESSION_PATTERN,
            },
        ),
        safety=ToolSafety.NONE,
        idempotent=True,
        timeout_s=5.0,
    )
    unavailable_reason = ""
    is_remote = False
    places = None

    async def run(self, arguments: Mapping[str, Any], _report: Report) -> str:
        """Return the computed number as text."""
        return format_number(await asyncio.to_thread(evaluate, arguments["expression"]))


class ClockTool:
    """Returns the current time in a time zone."""

    definition = ToolDefinition(
        name="clock",
        description="Tells the date, time and weekday in a time zone. Use it whenever the present time matters.",
        parameters_json=object_schema(
            (),
            timezone={
                "type": "string",
                "description": "IANA time zone, for example Europe/Berlin; UTC when left out",
                "minLength": 1,
                "maxLength": 64,
                "pattern": "^[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*$",
            },
        ),
        safety=ToolSafety.READ,
        idempotent=True,
        timeout_s=5.0,
    )
    unavailable_reason = ""
    is_remote = False
    places = None

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def run(self, arguments: Mapping[str, Any], _report: Report) -> str:
        """Return the time, the weekday and the time zone as a JSON object."""
        name = arguments.get("timezone", "UTC")
        now = self._clock.now().astimezone(_find_timezone(name))
        return dump_json({"time": now.isoformat(timespec="seconds"), "weekday": f"{now:%A}", "timezone": name})


def _find_timezone(name: str) -> tzinfo:
    if name == "UTC":  # UTC also works without installed time zone data
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ToolFailed(f"time zone {name!r} is not known: give an IANA name such as 'Europe/Berlin'") from None


class JsonQueryTool:
    """Queries a JSON document, in a confined process because a result can be far larger than the document."""

    definition = ToolDefinition(
        name="json_query",
        description="Finds values in a JSON document with a JMESPath query and returns them as JSON.",
        parameters_json=object_schema(
            ("document", "query"),
            document={"type": "string", "description": "the JSON document as text", "maxLength": MAX_DOCUMENT_BYTES},
            query={
                "type": "string",
                "description": "the JMESPath query, for example people[?age > `30`].name",
                "minLength": 1,
                "maxLength": MAX_QUERY_CHARS,
            },
        ),
        safety=ToolSafety.NONE,
        idempotent=True,
        timeout_s=10.0,
    )
    unavailable_reason = ""
    is_remote = False

    def __init__(self, workers: ProcessWorkers) -> None:
        self._workers = workers
        self.places = make_places(JSON_PROCESSES, JSON_PROCESSES)

    async def run(self, arguments: Mapping[str, Any], _report: Report) -> str:
        """Return the result of the query. Raises ToolFailed."""
        return await run_confined(self._workers, query_json, arguments["document"], arguments["query"])


def make_json_workers() -> ProcessWorkers:
    """Return the worker for JSON queries. Its process starts with the first query."""
    limits = WorkerLimits(
        processes=JSON_PROCESSES,
        time_s=MAX_JSON_S,
        memory_mib=MAX_JSON_MIB,
        queue_capacity=JSON_PROCESSES,
        module=query_json.__module__,
        advice="ask for less of the document",
    )
    return ProcessWorkers(limits, is_started_late=True)


def computing_tools(clock: Clock, json_workers: ProcessWorkers) -> list[Tool]:
    """Return the tools that need no settings."""
    return [CalculatorTool(), ClockTool(clock), JsonQueryTool(json_workers)]
