"""Commands that list what a deployment offers: tools and models."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from gateway.cli import options
from gateway.cli.output import print_json, reporting_errors, show
from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import inference_service_pb2, inference_service_pb2_grpc
from pagantic.orchestrator.v1 import approval_pb2, orchestrator_service_pb2
from pagantic_common.client import Client
from pagantic_common.client.tables import cell, list_table
from pagantic_common.codec.enums import name_of
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.rpc.access.tls.calling import find_target
from pagantic_common.rpc.call import call_unary


def tools(
    *,
    timeout: options.Timeout = 10.0,
    as_json: options.AsJson = False,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """List the tools that a request may name with --tool."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        listed = client.list_tools()
    if as_json:
        print_json(orchestrator_service_pb2.ListToolsResponse(tools=listed))
        return
    table = list_table(("name", "safety", "calls", "available", "description"))
    for tool in listed:
        definition = tool.definition
        safety = name_of(message_pb2.ToolSafety, definition.safety, "TOOL_SAFETY_").lower()
        action = name_of(approval_pb2.ToolAction, tool.action, "TOOL_ACTION_").lower()
        available = "yes"
        if not tool.available:
            available = f"no: {tool.unavailable_reason}"
        table.add_row(*map(cell, (definition.name, safety, action, available, definition.description)))
    show(table)


def models(
    *,
    timeout: options.Timeout = 10.0,
    as_json: options.AsJson = False,
    address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", envvar="PAGANTIC_INFERENCE_ADDRESS", help="Address of the inference service."
        ),
    ] = options.INFERENCE,
) -> None:
    """List the models that a request may name with --model."""
    with reporting_errors():
        listed = asyncio.run(_list_models(address, timeout))
    if as_json:
        print_json(listed)
        return
    table = list_table(("name", "context window", "capabilities"), right={"context window"})
    for model in listed.models:
        window = "not loaded"
        if model.context_window:
            window = f"{model.context_window} tokens"
        table.add_row(cell(model.name), window, cell(", ".join(model.capabilities)))
    show(table)


async def _list_models(address: str, timeout_s: float) -> inference_service_pb2.ListModelsResponse:
    async with find_target(address, os.environ).open(MAX_MESSAGE_BYTES) as channel:
        stub: inference_service_pb2_grpc.InferenceServiceAsyncStub
        stub = inference_service_pb2_grpc.InferenceServiceStub(channel)
        return await call_unary("inference", stub.ListModels, inference_service_pb2.ListModelsRequest(), timeout_s)
