"""The system that is fuzzed: every service in one process on one port, with the real model; and how it answers."""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path

import grpc
import psutil
from google.protobuf import json_format, message_factory
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.fuzz.valid import VALID
from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]
SERVICES = ("constraint", "context", "inference", "orchestrator", "rerank", "tools")
CALL_S = 5.0
HEALTH_S = 5.0
START_S = 120
MAX_STREAMED = 500
# They last until the caller leaves.
ENDLESS = frozenset({"ToolProviderService/OfferTools", "InferenceService/WatchReplica"})
OK, DEADLINE, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE
BARE = frozenset({DEADLINE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNIMPLEMENTED})


def methods():
    """Return every rpc of the system by its short name, `ToolService/ListTools`."""
    modules = [import_module(f"pagantic.{area}.v1.{area}_service_pb2") for area in SERVICES]
    services = [service for module in modules for service in module.DESCRIPTOR.services_by_name.values()]
    return {f"{service.name}/{method.name}": method for service in services for method in service.methods}


METHODS = methods()


def valid_requests(name):
    """Return the valid requests of an rpc."""
    cls = message_factory.GetMessageClass(METHODS[name].input_type)
    return [json_format.ParseDict(values, cls()) for values in VALID.get(name, ())]


class Target:
    """A running system.

    Args:
        address: Its port.
        process: The process that serves, for its memory and descriptors.
    """

    def __init__(self, address, process):
        self.process = process
        self.address = address
        self.statuses = Counter()
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.enable_retries", 0),
        ]
        self.channel = grpc.insecure_channel(address, options=options)
        self._health = health_pb2_grpc.HealthStub(grpc.insecure_channel(address, options=[("fuzz.health", 1)]))

    def call(self, name, request, timeout_s=CALL_S):
        """Make a call; returns its status, its last reply and the wrong it did, empty for none."""
        method = METHODS[name]
        path = f"/{method.containing_service.full_name}/{method.name}"
        reply_type = message_factory.GetMessageClass(method.output_type)
        serialize = bytes if isinstance(request, bytes) else type(request).SerializeToString
        reply = None
        try:
            if method.server_streaming:
                stream = self.channel.unary_stream(path, serialize, reply_type.FromString)(request, timeout=timeout_s)
                *_, reply = (None, *islice(stream, 1 if name in ENDLESS else MAX_STREAMED))
                stream.cancel()
            else:
                reply = self.channel.unary_unary(path, serialize, reply_type.FromString)(request, timeout=timeout_s)
        except grpc.RpcError as error:
            self.statuses[name, error.code().name] += 1
            return error.code(), None, wrong_of_status(error)
        self.statuses[name, "OK"] += 1
        return OK, reply, wrong_of_reply(reply)

    def is_serving(self):
        """Tell whether health answers that the system serves, however busy it is."""
        try:
            reply = self._health.Check(health_pb2.HealthCheckRequest(), timeout=HEALTH_S)
        except grpc.RpcError:
            return False
        return reply.status == health_pb2.HealthCheckResponse.SERVING

    def footprint(self):
        """Return memory in MiB and open descriptors."""
        with self.process.oneshot():
            return self.process.memory_info().rss / 2**20, self.process.num_fds()


def wrong_of_status(error):
    """Return what no request may be answered with, or "": a bug's status, or one without the taxonomy's details."""
    code, text = error.code(), error.details() or ""
    if code in BARE:
        return ""
    infos = _error_infos(error)
    if not infos and "larger than max" not in text:
        return f"{code.name} without ErrorInfo: {text}"
    if code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS):
        return f"{code.name}: {text}"
    return ""


def wrong_of_reply(reply):
    """Return what is wrong with a reply: a bug that is told inside of it."""
    found = re.search(r"internal error [0-9a-f]+", str(reply)) if reply is not None else None
    return f"a reply tells of an {found[0]}" if found else ""


def _error_infos(error):
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    if details is None:
        return []
    infos = []
    for detail in status_pb2.Status.FromString(details).details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            infos.append(info)
    return infos


@contextmanager
def running_target(folder):
    """Start a system with its state in the folder, or take the one whose port is in PAGANTIC_FUZZ_TARGET=PORT:PID."""
    if given := os.environ.get("PAGANTIC_FUZZ_TARGET"):
        port, _, pid = given.partition(":")
        yield Target(f"127.0.0.1:{port}", psutil.Process(int(pid)))
        return
    (port,) = free_ports(1)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PAGANTIC_")}
    environment |= {
        "PAGANTIC_STATE": str(folder),
        "PAGANTIC_ORCHESTRATOR_PORT": str(port),
        "PAGANTIC_INFERENCE_TUNING": "false",
        "PAGANTIC_INFERENCE_THREADS": "1",
        # What is kept on purpose is kept small, so that memory that grows is a leak.
        "PAGANTIC_INFERENCE_PARKED_MIB": "0",
        "PAGANTIC_INFERENCE_CONSTRAINT_CACHE_MIB": "64",
    }
    log = (folder / "host.out").open("wb")
    with (
        log,
        subprocess.Popen(
            [sys.executable, "-m", "deploy.local.host"], cwd=ROOT, env=environment, stdout=log, stderr=log
        ) as process,
    ):
        try:
            target = Target(f"127.0.0.1:{port}", psutil.Process(process.pid))
            wait_until_serving(target, process)
            yield target
            assert process.poll() is None, f"the system ended with status {process.returncode}"
        finally:
            process.terminate()
            process.wait(60)


def wait_until_serving(target, process):
    """Wait until the system serves; an error when it ends instead."""
    end_s = time.monotonic() + START_S
    while not target.is_serving():
        assert process.poll() is None, "the system did not start"
        assert time.monotonic() < end_s, "the system does not serve"
        time.sleep(0.2)
