"""Embeds texts through the inference service."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import numpy as np

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic.inference.v1 import inference_service_pb2_grpc as pb_grpc
from pagantic_common.domain.text.ranking import Vectors
from pagantic_common.rpc.peer import Credentials, Peer, pass_on


class InferenceEmbedder:
    """Implements TextEmbedder; raises the inference service's errors, and Unavailable when it cannot be reached."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        timeout_s: float,
        patience_s: float,
        *,
        credentials: Credentials = pass_on,
    ) -> None:
        self._stub: pb_grpc.InferenceServiceAsyncStub = pb_grpc.InferenceServiceStub(channel)
        self._peer = Peer("inference", channel, patience_s=patience_s, credentials=credentials)
        self._timeout_s = timeout_s

    async def embed(self, model: str, texts: Sequence[str]) -> Vectors:
        """Return a row for each text."""
        request = pb.EmbedRequest(model=model, texts=texts)
        reply = await self._peer.call_unary(self._stub.Embed, request, self._timeout_s)
        return np.array([embedding.values for embedding in reply.embeddings], dtype=np.float32)
