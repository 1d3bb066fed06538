"""Wraps services so that their work is recorded as spans and metrics."""

from __future__ import annotations

from dataclasses import replace

from services.orchestrator.app.recording.observing.constraint import ObservedConstraint
from services.orchestrator.app.recording.observing.context import ObservedContext
from services.orchestrator.app.recording.observing.inference import ObservedInference
from services.orchestrator.app.recording.observing.tools import ObservedTools
from services.orchestrator.app.services import Services


def observed(services: Services) -> Services:
    """Return services that record their work, except for tool calls, as spans and metrics."""
    return replace(
        services,
        inference=ObservedInference(services.inference),
        constraint=ObservedConstraint(services.constraint),
        context=ObservedContext(services.context),
    )


def with_observed_tools(services: Services) -> Services:
    """Return services that record tool calls as spans and metrics, including the orchestrator's own tools."""
    return replace(services, tools=ObservedTools(services.tools))
