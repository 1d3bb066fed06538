"""Asks the judge model for a verdict through the inference service."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.codec.messages import message_to_proto, usage_from_proto
from pagantic_common.domain.defaults import MAX_VERDICT_TOKENS
from pagantic_common.domain.errors import ErrorCode, Internal, Unavailable
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.grammar.engine_text import engine_text_of_schema
from pagantic_common.rpc.inference.pools import InferencePools
from services.constraint.core.judgement import (
    VERDICT_SCHEMA,
    Verdict,
    judge_messages,
    verdict_of,
)

RETRY_AFTER_S = 1.0


class InferenceJudge:
    """Implements Judge.

    Raises the errors of the inference service, and Unavailable when the service cannot be reached. The model decodes
    at temperature 0 and under the schema of a verdict, so a complete answer is always a verdict.
    """

    def __init__(self, pools: InferencePools, timeout_s: float) -> None:
        self._pools = pools
        self._timeout_s = timeout_s
        self._engine_text = engine_text_of_schema(VERDICT_SCHEMA)

    async def judge(self, output: str, intent: str, model: str) -> Verdict:
        """Ask the model for a verdict. An empty `model` selects the default model."""
        request = pb.InferRequest(
            model=model,
            chat=generation_pb2.ChatPrompt(messages=map(message_to_proto, judge_messages(output, intent))),
            sampling=generation_pb2.Sampling(temperature=0.0),
            constraint=generation_pb2.DecoderConstraint(engine_text=self._engine_text),
            max_tokens=MAX_VERDICT_TOKENS,
            reasoning=generation_pb2.Reasoning(mode=generation_pb2.REASONING_MODE_OFF),
        )
        try:
            answer, usage = await self._answer(request)
            return replace(verdict_of(answer), usage=usage)
        except Unavailable as error:
            if error.code is not None:
                raise
            raise Unavailable(
                f"the judge cannot be asked: {error}; PAGANTIC_CONSTRAINT_INFERENCE_ADDRESS is its address",
                code=ErrorCode.INFERENCE_MODEL_UNAVAILABLE,
                retry_after_s=RETRY_AFTER_S,
            ) from None

    async def _answer(self, request: pb.InferRequest) -> tuple[str, TokenUsage]:
        texts: list[str] = []
        pool = self._pools.of(request.model)
        async with aclosing(pool.peer.call_stream(pool.stub.Infer, request, self._timeout_s)) as responses:
            async for response in responses:
                match response.WhichOneof("event"):
                    case "delta":
                        texts.append(response.delta.content)
                    case "completed":
                        return "".join(texts), usage_from_proto(response.completed.usage)
        raise Internal("the judge's answer ended early", code=ErrorCode.INFERENCE_MALFORMED_RESPONSE)
