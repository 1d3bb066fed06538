"""Spans in memory, which tests read instead of sending them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from pagantic_common.telemetry.recording import make_provider


class RecordedSpans:
    """The ended spans, each in its final state."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def all(self) -> Sequence[ReadableSpan]:
        """Return the spans, in the order in which they ended."""
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        """Return the only span with this name."""
        (match,) = (span for span in self.all() if span.name == name)
        return match


@contextmanager
def recording_spans(sampler: Sampler | None = None) -> Iterator[RecordedSpans]:
    """Record spans in memory during the block. By default, the environment determines the sampler."""
    exporter = InMemorySpanExporter()
    provider = make_provider("tests", SimpleSpanProcessor(exporter), sampler)
    with patch.object(trace, "get_tracer_provider", lambda: provider):
        yield RecordedSpans(exporter)
