"""The tools service over a real socket, with its built-in tools switched on."""

import json
import sqlite3
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from pagantic.common.v1 import error_pb2, message_pb2
from pagantic.tools.v1 import tools_service_pb2 as pb
from pagantic.tools.v1 import tools_service_pb2_grpc as pb_grpc
from pagantic_common.codec.messages import duration_to_proto
from pagantic_common.rpc.process.server import start_server
from services.tools.__main__ import open_app
from services.tools.settings import ToolsSettings


@dataclass(frozen=True)
class Answer:
    """The code of a failure, or OK, and the text that the model gets."""

    code: str
    text: str

    def __str__(self):
        return f"{self.code}: {self.text[:160]}"


class Tools:
    """Calls the tools of a service."""

    def __init__(self, stub, credentials=None):
        self._stub = stub
        self._metadata = credentials and (("authorization", credentials),)

    def of(self, credentials):
        """Return the tools for a caller with these credentials."""
        return Tools(self._stub, credentials)

    async def call(self, name, **arguments):
        return await self.call_json(name, json.dumps(arguments))

    async def call_within(self, timeout_s, name, **arguments):
        return await self.call_json(name, json.dumps(arguments), timeout_s)

    async def call_json(self, name, arguments_json, timeout_s=None):
        call = message_pb2.ToolCall(id="c1", name=name, arguments_json=arguments_json)
        timeout = timeout_s and duration_to_proto(timeout_s)
        request = pb.ExecuteToolRequest(call=call, timeout=timeout)
        reply = await self._stub.ExecuteTool(request, timeout=60, metadata=self._metadata)
        code = "OK"
        if reply.HasField("error"):
            code = error_pb2.ErrorCode.Name(reply.error.code).removeprefix("ERROR_CODE_")
        return Answer(code, reply.result.content)

    async def reason_for_absence(self, name):
        """Return why a listed tool cannot be called; empty when it can."""
        (tool,) = (await self._stub.ListTools(pb.ListToolsRequest(names=[name]))).tools
        return tool.unavailable_reason

    async def assert_healthy(self):
        assert (await self.call("calculator", expression="6 * 7")).text == "42"


@asynccontextmanager
async def tool_service(**settings):
    settings = ToolsSettings(port=0, installed=False, **settings)
    async with open_app(settings) as registrations:
        server, _, port = await start_server(settings, registrations)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Tools(pb_grpc.ToolServiceStub(channel))
        await server.stop(None)


def make_database(path: Path):
    """Make a database of three cities."""
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE city (name TEXT, people INTEGER, flag BLOB)")
        rows = [("Kiel", 246_000, b"\x00\xff"), ("Rome", 2_800_000, None), ("Oslo", 709_000, None)]
        database.executemany("INSERT INTO city VALUES (?, ?, ?)", rows)
    database.close()
    return path
