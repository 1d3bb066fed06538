"""Records spans with OpenTelemetry's SDK. A process without a collector never imports this module."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import Status

from pagantic_common.telemetry.collector import resource_of
from pagantic_common.telemetry.tracing import new_trace_id

KEPT_OF_EXCEPTIONS = ("exception.type", "exception.escaped")


class TraceIds(RandomIdGenerator):
    """Generates random ids. A trace that begins inside `trace_scope` has the id passed to `trace_scope`."""

    def generate_trace_id(self) -> int:
        """Return the id of a new trace."""
        return new_trace_id()


def make_provider(area: str, processor: SpanProcessor, sampler: Sampler | None = None) -> TracerProvider:
    """Return a provider that records spans for a processor.

    If `sampler` is None, OTEL_TRACES_SAMPLER names the sampler.
    """
    resource = resource_of(area)
    provider = TracerProvider(sampler=sampler, resource=resource, id_generator=TraceIds(), shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return provider


class WithoutErrorTexts(SpanExporter):
    """Passes spans on to another exporter without error messages, which may quote callers.

    The code and the type of an error stay.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans. Spans without errors stay unchanged."""
        try:
            return self._exporter.export([_stripped(span) for span in spans])
        except ValueError:  # The collector did not answer, so the ending process has closed the channel.
            return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Shut down the wrapped exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the wrapped exporter."""
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
