"""Reads the spans that a collector was sent."""

from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class SentSpan:
    """A span, and the service that sent it."""

    service: str
    span: trace_pb2.Span
    attributes: dict = field(default_factory=dict)

    @property
    def name(self):
        return self.span.name

    @property
    def kind(self):
        return trace_pb2.Span.SpanKind.Name(self.span.kind).removeprefix("SPAN_KIND_")

    @property
    def id(self):
        return self.span.span_id

    @property
    def parent_id(self):
        return self.span.parent_span_id

    @property
    def trace_id(self):
        return self.span.trace_id.hex()


def read_spans(messages):
    """Return the spans of messages to a collector; those with metrics or logs have none."""
    spans = []
    for data in messages:
        request = trace_service_pb2.ExportTraceServiceRequest.FromString(data)
        for resource in request.resource_spans:
            service = _attributes(resource.resource.attributes).get("service.name", "")
            spans += [
                SentSpan(service, span, _attributes(span.attributes))
                for scope in resource.scope_spans
                for span in scope.spans
            ]
    return spans


def orphans_of(spans):
    """Return the spans whose parent was not sent."""
    known = {span.id for span in spans}
    return [span for span in spans if span.parent_id and span.parent_id not in known]


def _attributes(pairs):
    return {pair.key: _value_of(pair.value) for pair in pairs}


def _value_of(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value_of(one) for one in value.array_value.values]
    return getattr(value, kind)


def paths_of(spans, root_id=b""):
    """Return the path to each span below a root: service, kind and name of all that are above it, and its own."""
    children = {}
    for span in spans:
        children.setdefault(span.parent_id, []).append(span)

    def paths(parent_id, above):
        for span in children.get(parent_id, ()):
            path = (*above, f"{span.service.removeprefix('pagantic-')} {span.kind} {span.name}")
            yield path
            yield from paths(span.id, path)

    return list(paths(root_id, ()))
