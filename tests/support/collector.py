"""A collector of OpenTelemetry that keeps the bytes of all that it is sent."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

TRACES = "opentelemetry.proto.collector.trace.v1.TraceService"
SERVICES = (
    TRACES,
    "opentelemetry.proto.collector.metrics.v1.MetricsService",
    "opentelemetry.proto.collector.logs.v1.LogsService",
)


@contextmanager
def collecting(credentials=None, services=SERVICES, before=lambda: None):
    """Serve, with TLS where credentials are given, and give the address and the list of what came to the services.

    `before` is called before each answer.
    """
    received = []

    def taking(name):
        def export(request, _context):
            before()
            if name in services:
                received.append(request)
            return b""

        return export

    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    for name in SERVICES:
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, {"Export": grpc.unary_unary_rpc_method_handler(taking(name))})]
        )
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}", received
    finally:
        server.stop(grace=0).wait()
