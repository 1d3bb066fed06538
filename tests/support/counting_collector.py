"""`python -m tests.support.counting_collector PORT`: a collector as a process of its own, which counts spans.

SIGUSR1 has it print how many spans and traces came, and how many have a parent that did not come.
"""

import json
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from tests.support.collector import SERVICES, TRACES


class Counting:
    """The ids of all spans that came, and of the parents that they name."""

    def __init__(self):
        self._lock = threading.Lock()
        self._spans = set()
        self._parents = {}
        self._traces = set()

    def take(self, data, _context):
        request = trace_service_pb2.ExportTraceServiceRequest.FromString(data)
        spans = [span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans]
        with self._lock:
            for span in spans:
                self._spans.add(span.span_id)
                self._traces.add(span.trace_id)
                if span.parent_span_id:
                    self._parents[span.span_id] = (span.parent_span_id, span.name)
        return b""

    def print(self, *_signal):
        with self._lock:
            lost = [name for parent, name in self._parents.values() if parent not in self._spans]
            counts = {
                "spans": len(self._spans),
                "traces": len(self._traces),
                "orphans": len(lost),
                "of": sorted({*lost}),
            }
        print(json.dumps(counts), flush=True)  # noqa: T201


def main(port):
    counting = Counting()
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    for name in SERVICES:
        take = counting.take if name == TRACES else lambda _data, _context: b""
        handlers = {"Export": grpc.unary_unary_rpc_method_handler(take)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    signal.signal(signal.SIGUSR1, counting.print)
    print("ready", flush=True)  # noqa: T201
    server.wait_for_termination()


if __name__ == "__main__":
    main(int(sys.argv[1]))
