"""The part of an answer already sent, so that another replica can continue it."""

from __future__ import annotations

from pagantic.inference.v1 import inference_service_pb2


class PartialOutput:
    """The tokens and the text of an answer that the caller already has.

    A replica that continues the answer repeats them; `take` removes the repetition. Answers with several candidates,
    log-probabilities or tool calls cannot be continued.
    """

    def __init__(self, request: inference_service_pb2.InferRequest) -> None:
        self._request = request
        request.reports_tokens = True
        self._may_continue = request.candidate_count <= 1 and not request.HasField("top_logprobs")
        self._tokens: list[int] = []
        self._content = _Once()
        self._reasoning = _Once()

    def take(self, response: inference_service_pb2.InferResponse) -> inference_service_pb2.InferResponse:
        """Record a response and return it without the text already sent."""
        match response.WhichOneof("event"):
            case "started":
                self._request.sampling.seed = response.started.seed
            case "delta":
                delta = response.delta
                self._may_continue = self._may_continue and not delta.tool_calls
                self._tokens += delta.tokens
                delta.content = self._content.take(delta.content)
                delta.reasoning = self._reasoning.take(delta.reasoning)
            case _:
                self._may_continue = False
        return response

    def rest(self) -> inference_service_pb2.InferRequest | None:
        """Return the request for the rest of the answer; None if it cannot be continued."""
        has_said = self._content.size or self._reasoning.size
        if not self._may_continue or (has_said and not self._tokens):
            return None
        self._request.said_tokens[:] = self._tokens
        self._tokens.clear()
        self._content.repeat()
        self._reasoning.repeat()
        return self._request


class _Once:
    """A text that comes in pieces, and may come again from its beginning."""

    def __init__(self) -> None:
        self.size = 0
        self._position = 0

    def repeat(self) -> None:
        self._position = 0

    def take(self, piece: str) -> str:
        """Return the part of the next piece that has not come before."""
        known = max(0, self.size - self._position)
        self._position += len(piece)
        self.size = max(self.size, self._position)
        return piece[known:]
