"""Asks the inference service of a running system about its models. Failures are PaganticErrors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as pb_grpc
from pagantic_common.domain.defaults import MAX_MESSAGE_BYTES
from pagantic_common.rpc.access.tls.calling import find_target
from pagantic_common.rpc.call import call_unary

ReplyT = TypeVar("ReplyT")


def list_models(address: str, timeout_s: float) -> pb.ListModelsResponse:
    """Return the models that it serves, with their states."""
    return _call(address, lambda stub: call_unary("inference", stub.ListModels, pb.ListModelsRequest(), timeout_s))


def load(address: str, name: str, timeout_s: float) -> pb.LoadModelResponse:
    """Load a model."""
    request = pb.LoadModelRequest(model=name)
    return _call(address, lambda stub: call_unary("inference", stub.LoadModel, request, timeout_s))


def unload(address: str, name: str, timeout_s: float) -> pb.UnloadModelResponse:
    """Unload a model."""
    request = pb.UnloadModelRequest(model=name)
    return _call(address, lambda stub: call_unary("inference", stub.UnloadModel, request, timeout_s))


def _call(address: str, call: Callable[[pb_grpc.InferenceServiceAsyncStub], Awaitable[ReplyT]]) -> ReplyT:
    async def run() -> ReplyT:
        async with find_target(address, os.environ).open(MAX_MESSAGE_BYTES) as channel:
            stub: pb_grpc.InferenceServiceAsyncStub = pb_grpc.InferenceServiceStub(channel)
            return await call(stub)

    return asyncio.run(run())
