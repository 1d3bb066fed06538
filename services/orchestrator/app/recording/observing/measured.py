"""Records work as a span and a duration."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.metrics import Histogram
from opentelemetry.trace import Span, SpanKind

from pagantic_common.telemetry.names import ERROR_TYPE
from pagantic_common.telemetry.tracing import Attributes, error_type_of, span


@contextmanager
def measured(
    name: str,
    attributes: Attributes,
    duration: Histogram,
    labels: dict[str, str],
    *,
    kind: SpanKind = SpanKind.INTERNAL,
) -> Iterator[Span]:
    """Record the enclosed work as a span, and its duration with `labels`. The work may add labels."""
    began_s = time.monotonic()
    with span(name, attributes, kind=kind) as opened:
        try:
            yield opened
        except BaseException as error:
            labels[ERROR_TYPE] = error_type_of(error)
            raise
        finally:
            duration.record(time.monotonic() - began_s, labels)
