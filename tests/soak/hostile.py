"""What hostile callers send, one each second: what is large, endless, malformed, or held for ever."""

import asyncio
import contextlib
import itertools
import json

import grpc
from google.protobuf import json_format, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from llguidance import LLMatcher

from tests.fuzz.target import METHODS
from tests.fuzz.valid import ASKED

CALL_S = 20.0
EVERY_S = 1.0
MANY = 200_000
DEEP = '{"items":' * 130 + "{}" + "}" * 130


def _chat(**fields):
    return {"mode": "MODE_CHAT", "messages": ASKED, "hints": {"max_tokens": 1}, **fields}


def _structured(schema):
    return {**_chat(), "mode": "MODE_STRUCTURED", "output": {"schema_json": schema}}


def _multiple_of(number):
    return json.dumps({"type": "integer", "multipleOf": number})


def _infer(**fields):
    return {"text": "hello", "max_tokens": 8, **fields}


def _costly(number):
    """Return an engine's text that costs all the time that a trial has: we would refuse its schema."""
    return LLMatcher.grammar_from_json_schema(_multiple_of(999_961 + number))


NEVER = [{"name": "never", "expression": "false"}]
MARKS = "e" + "\u0301\u0323" * MANY

# Each by its rpc; the number counts up, so that nothing is answered from a cache.
REQUESTS = (
    ("InferenceService/Infer", lambda _: _infer(sampling={"repetition_penalty": 1e-300})),
    ("InferenceService/Infer", lambda _: _infer(sampling={"temperature": 1e308, "top_p": 5e-324})),
    (
        "InferenceService/Infer",
        lambda n: _infer(constraint={"engine_text": _costly(n)}),
    ),
    ("InferenceService/Infer", lambda n: _infer(constraint={"regex": f"(a{{1000}}){{{900 + n % 99}}}"})),
    ("InferenceService/Infer", lambda _: _infer(constraint={"schema_json": DEEP})),
    ("InferenceService/Tokenize", lambda n: {"text": f"{n} word" * MANY}),
    ("InferenceService/Detokenize", lambda _: {"tokens": [1] * MANY}),
    ("InferenceService/Score", lambda n: {"text": "a " * MANY, "continuations": [str(n)]}),
    ("InferenceService/CountTokens", lambda n: {"texts": [f"{n} x"] * 20_000}),
    ("ConstraintService/Compile", lambda n: {"schema_json": _multiple_of(999_961 + n)}),
    ("ConstraintService/Compile", lambda n: {"grammar": f'root ::= ("a"{{1000}}){{{1000 + n}}}'}),
    ("ConstraintService/Compile", lambda _: {"schema_json": '{"x":1e999}'}),
    (
        "ConstraintService/ValidateRules",
        lambda n: {"output": "a" * n, "rules": [{"name": "r", "expression": "!" * 5000}]},
    ),
    ("RerankService/Rerank", lambda _: {"query": "a", "chunks": [{"content": MARKS}]}),
    ("RerankService/Rerank", lambda _: {"query": "\ufdfa" * MANY, "chunks": [{"content": "a"}]}),
    ("ContextService/Retrieve", lambda _: {"query": MARKS, "policy": {"collection": "live"}}),
    (
        "ContextService/Ingest",
        lambda n: {
            "collection": "bad",
            "documents": [{"source": str(n), "content": "a", "metadata_json": json.dumps({"a": "x" * MANY})}],
        },
    ),
    (
        "OrchestratorService/Execute",
        lambda _: _chat(rules=NEVER, retry={"max_retries": 10, "backoff": "315576000000s"}),
    ),
    ("OrchestratorService/Execute", lambda _: _chat(hints={"max_tokens": 1, "timeout": "315576000000s"})),
    ("OrchestratorService/Execute", lambda n: _structured(_multiple_of(99_961 + n))),
    ("OrchestratorService/Execute", lambda _: _chat(messages=[{"role": "ROLE_USER", "content": "x" * 900_000}])),
    (
        "OrchestratorService/Execute",
        lambda _: _chat(messages=[{"role": "ROLE_USER", "content": MARKS}], context={"collection": "live"}),
    ),
    ("OrchestratorService/Execute", lambda _: _chat(output={"grammar_name": "\U0001f600" * 2000})),
    ("OrchestratorService/Execute", lambda _: _chat(hints={"max_tokens": 1, "temperature": "NaN"})),
    ("OrchestratorService/GetTimeline", lambda _: {"request_id": "x" * 100_000}),
    (
        "OrchestratorService/UpdateSession",
        lambda n: {"session_id": f"hostile-{n}", "state_json": {"a": json.dumps("x" * 10_000)}},
    ),
    (
        "ToolService/ExecuteTool",
        lambda _: {"call": {"id": "1", "name": "calculator", "arguments_json": '{"expression":"9**9**9"}'}},
    ),
)


class Hostile:
    """Sends one hostile request after the other, and remembers how each was answered.

    Args:
        addresses: host:port by area.
    """

    def __init__(self, addresses):
        self.statuses = {}
        self._addresses = addresses
        self._held = []

    async def run(self):
        """Go on until cancelled."""
        async with contextlib.AsyncExitStack() as stack:
            channels = {
                area: await stack.enter_async_context(grpc.aio.insecure_channel(address))
                for area, address in self._addresses.items()
            }
            tasks = set()
            for number, (name, make) in enumerate(itertools.cycle(REQUESTS)):
                tasks.add(asyncio.create_task(self._send(channels, name, make(number))))
                await self._hold_a_watch(channels["orchestrator"])
                tasks = {task for task in tasks if not task.done()}
                await asyncio.sleep(EVERY_S)

    async def _send(self, channels, name, values):
        method = METHODS[name]
        area = method.containing_service.name.removesuffix("Service").lower().replace("tool", "tools")
        request = json_format.ParseDict(values, message_factory.GetMessageClass(method.input_type)())
        reply = message_factory.GetMessageClass(method.output_type)
        path = f"/{method.containing_service.full_name}/{method.name}"
        make = channels[area].unary_stream if method.server_streaming else channels[area].unary_unary
        call = make(path, request.SerializeToString, reply.FromString)(request, timeout=CALL_S)
        status = "OK"
        try:
            if method.server_streaming:
                async for _ in call:
                    pass
            else:
                answer = await call
                status = "OK with error" if getattr(answer, "error", None) and answer.HasField("error") else "OK"
        except grpc.aio.AioRpcError as error:
            status = error.code().name
        key = (name, status)
        self.statuses[key] = self.statuses.get(key, 0) + 1

    async def _hold_a_watch(self, channel):
        """Hold health watches, the newest hundred."""
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        self._held.append(call)
        if len(self._held) > 100:
            self._held.pop(0).cancel()
