"""Our side: the inference service as a process of its own, and its gRPC interface."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import grpc

from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2, inference_service_pb2, inference_service_pb2_grpc
from pagantic_common.rpc.probe import ask_health
from pagantic_common.telemetry.names import READINESS
from tests.bench.load import MIN_P, TOP_K, TOP_P, Answer, BenchError, Query

ROOT = Path(__file__).parents[2]
START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 30.0
TAIL_LINES = 20
END_TEXTS = ("<|im_end|>", "<|endoftext|>", "<reponame>")
NEVER = -100.0  # the least bias that the service takes; no token survives it

_ROLES = {
    "system": message_pb2.ROLE_SYSTEM,
    "user": message_pb2.ROLE_USER,
    "assistant": message_pb2.ROLE_ASSISTANT,
}


@contextmanager
def running_service(
    area: str, calling: Mapping[str, str] = MappingProxyType({}), /, module: str = "", **settings: str
) -> Iterator[tuple[str, int]]:
    """Run `python -m services.<area>`, or another module; yields its address, when it is healthy, and its process id.

    Variables PAGANTIC_<AREA>_* of this process reach it, except the port and those that are given. `calling` are the
    variables of those who call it.
    """
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    given = {"port": str(port), **settings}
    environment = {**os.environ, **{f"PAGANTIC_{area.upper()}_{name.upper()}": given[name] for name in given}}
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", module or f"services.{area}"]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            address = f"127.0.0.1:{port}"
            deadline_s = time.monotonic() + START_DEADLINE_S
            while ask_health(address, READINESS, calling) != "SERVING":
                if process.poll() is not None or time.monotonic() > deadline_s:
                    log.seek(0)
                    tail = log.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
                    raise BenchError("\n".join([*tail, f"the {area} service does not start"]))
                time.sleep(0.1)
            yield address, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Ours:
    """Asks our service over one channel, as the other services do."""

    name = "ours"

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
        self._stub = inference_service_pb2_grpc.InferenceServiceStub(self._channel)
        self.end_tokens: tuple[int, ...] = ()

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def find_end_tokens(self) -> tuple[int, ...]:
        """Learn which tokens end a turn, so that answers of a full length can do without them."""
        found = []
        for text in END_TEXTS:
            request = inference_service_pb2.TokenizeRequest(text=text, parse_special=True)
            tokens = (await self._stub.Tokenize(request)).tokens
            if len(tokens) == 1:
                found.append(tokens[0])
        self.end_tokens = tuple(found)
        return self.end_tokens

    async def count_tokens(self, texts: Sequence[str]) -> int:
        """Return how many tokens all texts have together."""
        reply = await self._stub.CountTokens(inference_service_pb2.CountTokensRequest(texts=texts))
        return sum(reply.text_tokens)

    async def prepare(self, queries: Sequence[Query]) -> None:
        """Nothing: the service renders prompts itself."""

    async def computed_prompt_tokens(self) -> int | None:
        """Nothing: each answer tells."""
        return None

    async def ask(self, query: Query) -> Answer:
        """Stream one Infer call."""
        request = self._request(query)
        pieces: list[list[str]] = [[] for _ in range(query.candidates)]
        first_s = 0.0
        usage = None
        sent_s = time.perf_counter()
        async for response in self._stub.Infer(request):
            event = response.WhichOneof("event")
            if event == "delta":
                first_s = first_s or time.perf_counter()
                pieces[response.delta.candidate_index].append(response.delta.content)
            elif event == "completed":
                usage = response.completed.usage
        ended_s = time.perf_counter()
        if usage is None:
            raise BenchError("a stream ended without its completed event")
        return Answer(
            sent_s=sent_s,
            first_s=first_s or ended_s,
            ended_s=ended_s,
            texts=tuple("".join(one) for one in pieces),
            output_tokens=usage.output_tokens,
            prompt_tokens=usage.prompt_tokens,
            computed_prompt_tokens=usage.prompt_tokens - usage.cached_prompt_tokens,
        )

    def _request(self, query: Query) -> inference_service_pb2.InferRequest:
        sampling = generation_pb2.Sampling(
            temperature=query.temperature, top_k=TOP_K, top_p=TOP_P, min_p=MIN_P, seed=query.seed
        )
        if query.is_full_length:
            sampling.logit_bias.update(dict.fromkeys(self.end_tokens, NEVER))
        request = inference_service_pb2.InferRequest(
            sampling=sampling, max_tokens=query.max_tokens, candidate_count=query.candidates
        )
        if query.schema is not None:
            request.constraint.schema_json = json.dumps(query.schema)
        if query.messages:
            messages = [message_pb2.Message(role=_ROLES[role], content=content) for role, content in query.messages]
            request.chat.messages.extend(messages)
        else:
            request.text = query.text
        return request
