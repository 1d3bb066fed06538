"""Prompt templates <-> their messages."""

from __future__ import annotations

from pagantic.orchestrator.v1 import execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from services.orchestrator.core.model.request import TemplateCall
from services.orchestrator.ports.services import ConfiguredTemplate


def template_call_from_proto(template: execution_pb2.PromptTemplate) -> TemplateCall:
    """Decode the name of a template and the values of its variables."""
    return TemplateCall(template.name, tuple(sorted(template.variables.items())))


def template_to_proto(template: ConfiguredTemplate) -> pb.ConfiguredTemplate:
    """Encode a configured template."""
    return pb.ConfiguredTemplate(name=template.name, variables=template.variables, session_keys=template.session_keys)
