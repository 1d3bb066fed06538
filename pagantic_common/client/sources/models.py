"""The client's methods for the served models: listing them, and using them outside of executions."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2, inference_service_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client.stored.administration import OrchestratorCalls

TEXTS_OF_A_CALL = 64  # Vectors of 8192 dimensions for this many texts fill half of the largest message.


class Models(OrchestratorCalls):
    """Methods for models, which need a key with the scope EXECUTE."""

    async def list_models(self) -> list[message_pb2.ModelInfo]:
        """Return the models that the caller may use, the default model first."""
        return list((await self._call(self._stub().ListModels, pb.ListModelsRequest())).models)

    async def embed(self, texts: Sequence[str], *, model: str = "") -> inference_service_pb2.EmbedResponse:
        """Return a vector of unit length for each text, in the order of the texts, and the usage.

        Many texts are sent in several calls. Raises TypeError for a single text instead of a list.

        Args:
            texts: Any number of texts, each with the prefix that the model expects, such as "query: ".
            model: Alias of an embedding model. If empty, the first model that the caller may use is selected.
        """
        _check_list(texts)
        response = inference_service_pb2.EmbedResponse()
        for start in range(0, max(1, len(texts)), TEXTS_OF_A_CALL):  # The service rejects an empty list.
            some = texts[start : start + TEXTS_OF_A_CALL]
            request = inference_service_pb2.EmbedRequest(model=model, texts=some)
            answer = await self._call(self._stub().Embed, request)
            response.embeddings.extend(answer.embeddings)
            response.usage.prompt_tokens += answer.usage.prompt_tokens
        return response

    async def rerank(self, query: str, texts: Sequence[str], *, model: str = "", top_n: int = 0) -> pb.RerankResponse:
        """Return the positions of the texts with their relevance to a query, best first, and the usage.

        Raises InvalidRequest if no cross-encoder is configured, and TypeError for a single text instead of a list.

        Args:
            query: The question, or any text.
            texts: At most 1024 texts.
            model: Alias of a cross-encoder. If empty, the first model that the caller may use is selected.
            top_n: Maximum number of results; 0 returns all.
        """
        _check_list(texts)
        request = pb.RerankRequest(model=model, query=query, texts=texts, top_n=top_n)
        return await self._call(self._stub().Rerank, request)

    async def count_tokens(
        self,
        texts: Sequence[str] = (),
        *,
        messages: Sequence[message_pb2.Message] = (),
        tools: Sequence[message_pb2.ToolDefinition] = (),
        model: str = "",
    ) -> inference_service_pb2.CountTokensResponse:
        """Return the token counts of each text and of a conversation with these tools, as the model would see them."""
        _check_list(texts)
        request = inference_service_pb2.CountTokensRequest(model=model, texts=texts)
        if messages:
            request.chat.CopyFrom(generation_pb2.ChatPrompt(messages=messages, tools=tools))
        return await self._call(self._stub().CountTokens, request)


def _check_list(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise TypeError("texts is a single text: put it into a list")
