"""`pagantic tune`: measures anew how the engine runs best on this machine, and tells how that goes."""

from __future__ import annotations

import time
from typing import Annotated

import grpc
import typer

from gateway.cli.local import read_status
from gateway.cli.output import EXIT_FAILED, note
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as rpc

POLL_S = 0.5
CALL_TIMEOUT_S = 10.0
DEFAULT_ADDRESS = "127.0.0.1:50052"


def tune(
    *,
    address: Annotated[
        str, typer.Option(envvar="PAGANTIC_INFERENCE_ADDRESS", help="host:port of the inference service")
    ] = "",
    timeout: Annotated[float, typer.Option(min=1, help="longest wait for a quiet machine, seconds")] = 300.0,
) -> None:
    """Measure anew how the engine runs best; requests are served meanwhile."""
    with grpc.insecure_channel(address or _find_address(), options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = rpc.InferenceServiceStub(channel)
        try:
            stub.TuneEngine(pb.TuneEngineRequest(), timeout=CALL_TIMEOUT_S)
            reply = _wait(stub, time.monotonic() + timeout)
        except grpc.RpcError as error:
            typer.secho(f"{error.code().name}: {error.details()}", err=True, fg=typer.colors.RED)
            raise typer.Exit(EXIT_FAILED) from None
    if reply.state != pb.TUNING_STATE_MEASURED:
        typer.secho(f"not measured within {timeout:.0f} s: {reply.note}", err=True, fg=typer.colors.RED)
        typer.echo("next: leave it; it is measured when the machine is quiet, and `pagantic doctor` tells", err=True)
        raise typer.Exit(EXIT_FAILED)
    for choice in reply.choices:
        typer.echo(f"{choice.name}: {choice.value} ({choice.reason})")


def _wait(stub: rpc.InferenceServiceStub, until_s: float) -> pb.DescribeEngineResponse:
    told = ""
    while True:
        reply = stub.DescribeEngine(pb.DescribeEngineRequest(), timeout=CALL_TIMEOUT_S)
        if reply.state == pb.TUNING_STATE_MEASURED or time.monotonic() > until_s:
            return reply
        state = "measuring" if reply.state == pb.TUNING_STATE_MEASURING else reply.note
        if state != told:
            told = state
            note(state)
        time.sleep(POLL_S)


def _find_address() -> str:
    return next((str(area["address"]) for area in read_status() if area["name"] == "inference"), DEFAULT_ADDRESS)
