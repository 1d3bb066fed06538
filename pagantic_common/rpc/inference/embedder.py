"""Embeds texts through the inference service."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.domain.text.ranking import Vectors
from pagantic_common.rpc.inference.pools import InferencePools


class InferenceEmbedder:
    """A TextEmbedder that raises the inference service's errors, and Unavailable if the service cannot be reached."""

    def __init__(self, pools: InferencePools, timeout_s: float) -> None:
        self._pools = pools
        self._timeout_s = timeout_s

    async def embed(self, model: str, texts: Sequence[str]) -> Vectors:
        """Return a row for each text."""
        request = pb.EmbedRequest(model=model, texts=texts)
        pool = self._pools.of(model)
        reply = await pool.peer.call_unary(pool.stub.Embed, request, self._timeout_s)
        return np.array([embedding.values for embedding in reply.embeddings], dtype=np.float32)
