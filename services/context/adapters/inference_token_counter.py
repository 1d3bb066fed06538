"""Counts tokens through the inference service."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as pb_grpc
from pagantic_common.rpc.peer import Peer


class InferenceTokenCounter:
    """Implements TokenCounter; raises the inference service's errors, and Unavailable when it cannot be reached."""

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float, patience_s: float) -> None:
        self._stub: pb_grpc.InferenceServiceAsyncStub = pb_grpc.InferenceServiceStub(channel)
        self._peer = Peer("inference", channel, patience_s=patience_s)
        self._timeout_s = timeout_s

    async def count(self, model: str, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""
        request = pb.CountTokensRequest(model=model, texts=texts)
        reply = await self._peer.call_unary(self._stub.CountTokens, request, self._timeout_s)
        return list(reply.text_tokens)
