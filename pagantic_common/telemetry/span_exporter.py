"""Exports spans without the texts of errors, which may quote what callers sent. The error's code and type stay."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status

KEPT_OF_EXCEPTIONS = ("exception.type", "exception.escaped")


class WithoutErrorTexts(SpanExporter):
    """Passes spans on to another exporter."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans; those without errors as they are."""
        return self._exporter.export([_stripped(span) for span in spans])

    def shutdown(self) -> None:
        """End the other exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Have the other exporter send what it holds."""
        return self._exporter.force_flush(timeout_millis)


def _stripped(span: ReadableSpan) -> ReadableSpan:
    if not span.status.description and not span.events:
        return span
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=[_without_text(event) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _without_text(event: Event) -> Event:
    kept = {name: value for name, value in (event.attributes or {}).items() if name in KEPT_OF_EXCEPTIONS}
    return Event(event.name, kept, event.timestamp)
