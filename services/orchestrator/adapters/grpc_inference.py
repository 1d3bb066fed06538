"""InferencePort over gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import grpc

from pagantic.inference.v1 import generation_pb2, inference_service_pb2, inference_service_pb2_grpc
from pagantic_common.codec.messages import (
    message_to_proto,
    tool_call_from_proto,
    tool_choice_to_proto,
    tool_definition_to_proto,
    usage_from_proto,
)
from pagantic_common.domain.errors import ErrorCode, Internal
from pagantic_common.rpc.call import call_stream
from services.orchestrator.convert.event import finish_reason_from_proto
from services.orchestrator.core.machine import Infer
from services.orchestrator.core.request import Hints
from services.orchestrator.core.response import InferenceOutput


class GrpcInference:
    """The inference service behind a channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: inference_service_pb2_grpc.InferenceServiceAsyncStub = (
            inference_service_pb2_grpc.InferenceServiceStub(channel)
        )

    async def infer(self, command: Infer, hints: Hints) -> AsyncGenerator[str | InferenceOutput, None]:
        """Stream the answer's text, then the whole output."""
        texts: list[str] = []
        end: inference_service_pb2.CandidateEnd | None = None
        async with aclosing(call_stream("inference", self._stub.Infer, _request(command, hints))) as responses:
            async for response in responses:
                match response.WhichOneof("event"):
                    case "delta" if response.delta.content:
                        texts.append(response.delta.content)
                        yield response.delta.content
                    case "candidate_end":
                        end = response.candidate_end
                    case "completed" if end is not None:
                        yield InferenceOutput(
                            content="".join(texts),
                            finish_reason=finish_reason_from_proto(end.finish_reason),
                            tool_calls=tuple(tool_call_from_proto(call) for call in end.tool_calls),
                            constraint_satisfied=end.constraint_satisfied,
                            usage=usage_from_proto(response.completed.usage),
                        )
                        return
        raise Internal("the inference stream ended early", code=ErrorCode.INFERENCE_MALFORMED_RESPONSE)


def _request(command: Infer, hints: Hints) -> inference_service_pb2.InferRequest:
    sampling = generation_pb2.Sampling(temperature=hints.temperature, top_p=hints.top_p, seed=command.seed)
    request = inference_service_pb2.InferRequest(
        model=hints.model,
        chat=generation_pb2.ChatPrompt(
            messages=[message_to_proto(message) for message in command.messages],
            tools=[tool_definition_to_proto(tool) for tool in command.tools],
            tool_choice=tool_choice_to_proto(command.tool_choice),
        ),
        sampling=sampling,
        max_tokens=hints.max_tokens,
        options_json=hints.options_json,
    )
    if command.engine_text:
        request.constraint.engine_text = command.engine_text
    return request
