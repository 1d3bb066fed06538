"""`pagantic tune`: measures again which engine settings are best on this machine, and shows the progress."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import Annotated

import typer

from gateway.cli import options
from gateway.cli.failures import EXIT_FAILED
from gateway.cli.operator_token import operator_credentials
from gateway.cli.output import note, print_json, reporting_errors, say_wrapped
from gateway.cli.serving.local import read_status
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as pb_grpc
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.rpc.access.tls.calling import find_target
from pagantic_common.rpc.call import call_unary

POLL_S = 0.5
CALL_TIMEOUT_S = 10.0


def tune(
    *,
    address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", envvar="PAGANTIC_INFERENCE_ADDRESS", help="Address of the inference service."
        ),
    ] = "",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="Longest wait for a quiet machine.")] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the engine's settings as JSON.")] = False,
) -> None:
    """Measure again how the engine runs best.

    The system continues to serve requests in the meantime.
    """
    with reporting_errors():
        reply = asyncio.run(_measure(address or _find_address(), timeout))
    if reply.state != pb.TUNING_STATE_MEASURED:
        typer.secho(f"not measured within {timeout:.0f} s: {reply.note}", err=True, fg=typer.colors.RED)
        typer.echo("next: wait; it is measured when the machine is quiet, and `pagantic doctor` shows it", err=True)
        raise typer.Exit(EXIT_FAILED)
    if as_json:
        print_json(reply)
        return
    for choice in reply.choices:
        say_wrapped(f"{choice.name}: {choice.value} ({choice.reason})", indent=2)


async def _measure(address: str, timeout_s: float) -> pb.DescribeEngineResponse:
    until_s = time.monotonic() + timeout_s
    last = ""
    target = find_target(address, os.environ)
    credentials = operator_credentials("inference", target)
    call = partial(call_unary, "inference", timeout_s=CALL_TIMEOUT_S, credentials=credentials)
    async with target.open(MAX_MESSAGE_BYTES) as channel:
        stub: pb_grpc.InferenceServiceAsyncStub = pb_grpc.InferenceServiceStub(channel)
        await call(stub.TuneEngine, pb.TuneEngineRequest())
        while True:
            reply = await call(stub.DescribeEngine, pb.DescribeEngineRequest())
            if reply.state == pb.TUNING_STATE_MEASURED or time.monotonic() > until_s:
                return reply
            state = reply.note
            if reply.state == pb.TUNING_STATE_MEASURING:
                state = "measuring"
            if state != last:
                last = state
                note(state)
            await asyncio.sleep(POLL_S)


def _find_address() -> str:
    addresses = (str(area["address"]) for area in read_status() if area["name"] == "inference")
    return next(addresses, options.INFERENCE)
