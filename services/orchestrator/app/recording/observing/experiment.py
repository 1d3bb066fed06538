"""Adds the variant of the current execution to the span of the execution and to the metrics of its work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from opentelemetry.trace import Span

from pagantic_common.telemetry.names import EXPERIMENT_NAME, EXPERIMENT_VARIANT
from services.orchestrator.core.model.request import Request

_NONE: Mapping[str, str] = MappingProxyType({})

_labels: ContextVar[Mapping[str, str]] = ContextVar("variant_labels", default=_NONE)


def variant_labels() -> Mapping[str, str]:
    """Return the labels for the variant of the current work, which are empty outside experiments."""
    return _labels.get()


@contextmanager
def variant_scope(opened: Span, request: Request) -> Iterator[None]:
    """Set the variant of a request for the work inside.

    There are no labels for a variant that the caller named or that a replay took from the record. Such a variant was
    not chosen at random, so its labels would bias the comparison.
    """
    variant = request.variant
    labels = _NONE
    if variant is not None:
        opened.set_attributes({EXPERIMENT_NAME: variant.experiment, EXPERIMENT_VARIANT: variant.variant})
        if request.choice.named is None and request.replay is None:
            labels = {"experiment": variant.experiment, "variant": variant.variant}
    token = _labels.set(labels)
    try:
        yield
    finally:
        _labels.reset(token)
