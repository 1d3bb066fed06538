"""Counts tokens through the inference service."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.rpc.inference.pools import InferencePools

ANSWER_S = 3.0  # After this time, the request is sent to another replica.


class InferenceTokenCounter:
    """Implements TokenCounter with the inference service.

    Raises the service's errors, or Unavailable if the service cannot be reached.
    """

    def __init__(self, pools: InferencePools, timeout_s: float) -> None:
        self._pools = pools
        self._timeout_s = timeout_s

    async def count(self, model: str, texts: Sequence[str]) -> list[int]:
        """Return the token count of each text."""
        request = pb.CountTokensRequest(model=model, texts=texts)
        pool = self._pools.of(model)
        reply = await pool.peer.call_unary(pool.stub.CountTokens, request, self._timeout_s, answer_s=ANSWER_S)
        return list(reply.text_tokens)
