"""What OpenTelemetry's conventions say of attributes: names from their package, the rest from their pages."""

import importlib
from pathlib import Path

from opentelemetry import semconv

TYPES = {
    "gen_ai.operation.name": str,
    "gen_ai.provider.name": str,
    "gen_ai.conversation.id": str,
    "gen_ai.workflow.name": str,
    "gen_ai.data_source.id": str,
    "gen_ai.output.type": str,
    "gen_ai.request.model": str,
    "gen_ai.request.choice.count": int,
    "gen_ai.request.seed": int,
    "gen_ai.request.stream": bool,
    "gen_ai.request.max_tokens": int,
    "gen_ai.request.temperature": float,
    "gen_ai.request.top_p": float,
    "gen_ai.request.top_k": float,
    "gen_ai.request.frequency_penalty": float,
    "gen_ai.request.presence_penalty": float,
    "gen_ai.response.model": str,
    "gen_ai.response.finish_reasons": list,
    "gen_ai.response.time_to_first_chunk": float,
    "gen_ai.tool.name": str,
    "gen_ai.tool.type": str,
    "gen_ai.tool.call.id": str,
    "gen_ai.usage.input_tokens": int,
    "gen_ai.usage.output_tokens": int,
    "gen_ai.usage.cache_read.input_tokens": int,
    "gen_ai.usage.reasoning.output_tokens": int,
    "http.request.method": str,
    "http.response.status_code": int,
    "http.route": str,
    "url.path": str,
    "url.scheme": str,
    "rpc.system.name": str,
    "rpc.method": str,
    "rpc.response.status_code": str,
    "error.type": str,
}

# The kind of an operation's span, and the attributes that it must have here.
REQUIRED = {
    "chat": (
        "CLIENT",
        {
            "gen_ai.provider.name",
            "gen_ai.output.type",
            "gen_ai.request.model",
            "gen_ai.request.seed",
            "gen_ai.request.stream",
            "gen_ai.response.model",
            "gen_ai.response.finish_reasons",
            "gen_ai.response.time_to_first_chunk",
            "gen_ai.usage.input_tokens",
            "gen_ai.usage.output_tokens",
        },
    ),
    "retrieval": ("CLIENT", {"gen_ai.data_source.id"}),
    "execute_tool": ("INTERNAL", {"gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.tool.type"}),
    "invoke_workflow": ("INTERNAL", {"gen_ai.workflow.name"}),
}


def known_attributes():
    """Return the names of all attributes that the package of the conventions has."""
    return _constants("attributes")


def known_metrics():
    """Return the names of all metrics that the package of the conventions has."""
    return _constants("metrics")


def _constants(part):
    found = set()
    (folder,) = semconv.__path__
    for path in Path(folder).rglob(f"{part}/*_{part}.py"):
        name = ".".join((semconv.__name__, *path.relative_to(folder).with_suffix("").parts))
        constants = vars(importlib.import_module(name))
        found |= {value for key, value in constants.items() if key.isupper() and isinstance(value, str)}
    return found
