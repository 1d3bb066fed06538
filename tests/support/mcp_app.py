"""The MCP server over HTTP, in front of a real orchestrator whose services do what a test says."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway.mcp.http.app import PATH, McpApp
from gateway.mcp.server import open_server
from gateway.mcp.settings import McpSettings
from gateway.web.serving import http_server
from pagantic.common.v1 import chunk_pb2
from pagantic.context.v1 import collection_pb2
from pagantic.context.v1 import context_service_pb2 as context_pb
from pagantic.context.v1 import context_service_pb2_grpc as context_rpc
from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.errors import NotFound
from pagantic_common.rpc.access.registration import Registration
from tests.support.orchestrator_app import orchestrator
from tests.support.scripted_services import ScriptedTools, scripted_services

LEGACY, MODERN = "2025-11-25", "2026-07-28"
CONTEXT = "pagantic.context.v1.ContextService"


class Collections(context_rpc.ContextServiceServicer):
    """Has one collection, `notes`."""

    def __init__(self):
        self.retrieved = []

    async def ListCollections(self, request, context):
        notes = collection_pb2.Collection(name="notes", document_count=1, chunk_count=3)
        return context_pb.ListCollectionsResponse(collections=[notes])

    async def Retrieve(self, request, context):
        self.retrieved.append(request)
        if request.policy.collection != "notes":
            raise NotFound(f"no collection is named {request.policy.collection!r}")
        chunk = chunk_pb2.Chunk(id="1", content="The lamp is green.", source="house.txt")
        return context_pb.RetrieveResponse(chunks=[chunk])

    def registration(self):
        return Registration(
            CONTEXT,
            lambda server: context_rpc.add_ContextServiceServicer_to_server(self, server),
            _scopes(context_pb, CONTEXT),
        )


def _scopes(module, name):
    service = module.DESCRIPTOR.services_by_name[name.rpartition(".")[2]]
    return dict.fromkeys([method.name for method in service.methods], Scope.READ)


@dataclass
class Deployment:
    """What runs behind the server."""

    stub: Any
    address: str
    tools: ScriptedTools
    collections: Collections


@asynccontextmanager
async def deployment(path, services=None, *, collections=None, **orchestrator_fields):
    """Serve an orchestrator whose port has collections, too: one of them, unless real ones are given."""
    collections = collections or Collections()
    services = services or scripted_services()
    async with orchestrator(path, services, beside=[collections.registration()], **orchestrator_fields) as stub:
        yield Deployment(stub, stub.address, services.tools, collections)


@dataclass
class Served:
    """A server over HTTP, and what runs behind it."""

    url: str
    app: McpApp
    world: Deployment
    http: httpx.AsyncClient = field(default_factory=httpx.AsyncClient)

    async def post(self, message, *, version=LEGACY, session="", **headers):
        """Send a message, and return the response."""
        return await self.http.post(
            self.url, content=self.body(message), headers=self.headers(version, session, headers)
        )

    def body(self, message):
        return message if isinstance(message, bytes) else json.dumps(message).encode()

    def headers(self, version=LEGACY, session="", more=()):
        made = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if version:
            made["mcp-protocol-version"] = version
        if session:
            made["mcp-session-id"] = session
        return made | dict(more)

    async def open_session(self, **headers):
        """Open a session, and return its id."""
        response = await self.post(initialize(), **headers)
        assert response.status_code == 200, response.text
        session = response.headers["mcp-session-id"]
        await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, session=session, **headers)
        return session


def initialize():
    params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    return {"jsonrpc": "2.0", "id": "open", "method": "initialize", "params": params}


def call(name, arguments=None, request_id=1, token=None):
    params = {"name": name, "arguments": arguments or {}}
    if token is not None:
        params["_meta"] = {"progressToken": token}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def result_in(response):
    """Return the result in a response, JSON or a stream of events."""
    if response.headers["content-type"].startswith("application/json"):
        return response.json()
    lines = [line for line in response.text.splitlines() if line.startswith("data:")]
    return json.loads(lines[-1].removeprefix("data:"))


@asynccontextmanager
async def serving_app(app, settings):
    """Serve a running application on a free port, and give its URL."""
    server = http_server(app, settings)
    listener = socket.create_server(("127.0.0.1", 0))
    serving_task = asyncio.create_task(server._serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}{PATH}"
    finally:
        server.should_exit = True
        await serving_task
        listener.close()


@asynccontextmanager
async def serving_mcp(world, **fields):
    """Serve a deployment to clients of the protocol."""
    times = {name: fields.pop(name) for name in ("session_idle_s",) if name in fields}
    settings = McpSettings(drain_s=0, **fields)
    async with open_server(settings, world.address) as (server, callers):
        app = McpApp(server, settings, callers, **times)
        async with app.running(), serving_app(app, settings) as url, httpx.AsyncClient() as http:
            yield Served(url, app, world, http)
