"""Structured logs on stderr, one line per event, with the correlation of the current work. Prompts are never logged."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

from pagantic_common.settings import LogFormat
from pagantic_common.telemetry.scope import current_correlation


def _add_correlation(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    correlation = current_correlation()
    for key in ("request_id", "session_id", "trace_id", "span_id", "step_name", "caused_by"):
        if (value := getattr(correlation, key)) and key not in event:
            event[key] = value
    return event


def set_up_logging(area: str, *, level: str, log_format: LogFormat, stream: TextIO | None = None) -> None:
    """Send the records of structlog and of the standard library to a stream in the same form.

    The default stream is stderr.
    """

    def add_service(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["service"] = area
        return event

    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_service,
        _add_correlation,
    ]
    stream = stream or sys.stderr
    # Files and pipes do not get terminal codes. https://no-color.org defines the variable.
    has_colors = stream.isatty() and not os.environ.get("NO_COLOR")
    renderer: structlog.typing.Processor = structlog.dev.ConsoleRenderer(colors=has_colors)
    if log_format is LogFormat.JSON:
        renderer = structlog.processors.JSONRenderer()
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            renderer,
        ],
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return a logger. Log an event as a lower-case phrase, and its details as keyword arguments."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def report_bug(log: structlog.stdlib.BoundLogger, error: BaseException, **where: str) -> str:
    """Log an unexpected error under a new id, and return the message for callers."""
    error_id = uuid.uuid4().hex[:12]
    log.error("unexpected error", error_id=error_id, exc_info=error, **where)
    return f"internal error {error_id}: the service's log has the particulars"
