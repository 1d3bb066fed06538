"""A Model Context Protocol server by the SDK: `python -m tests.support.mcp_server [--http PORT]`."""

import argparse
import asyncio
import os
import sys
import time

from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import (
    AudioContent,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import BaseModel

TOKEN = "token of the issuer"  # noqa: S105 - of this test server


class OneToken:
    """Knows a single token."""

    async def verify_token(self, token):
        return AccessToken(token=token, client_id="c", scopes=[]) if token == TOKEN else None


def auth_of(argv):
    """Return what the server is made with where `--issuer URL` says who gives tokens."""
    if "--issuer" not in argv:
        return {}
    port = argv[argv.index("--http") + 1]
    auth = AuthSettings(issuer_url=argv[argv.index("--issuer") + 1], resource_server_url=f"http://127.0.0.1:{port}/mcp")
    return {"auth": auth, "token_verifier": OneToken()}


server = MCPServer("test server", **auth_of(sys.argv))
PIXEL = "iVBORw0KGgo="
cancelled = 0


class Sum(BaseModel):
    sum: int


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def echo(text: str) -> str:
    """Says it again."""
    return text


@server.tool(annotations=ToolAnnotations(destructive_hint=False, open_world_hint=False, idempotent_hint=True))
def add(a: int, b: int) -> Sum:
    """Adds."""
    return Sum(sum=a + b)


@server.tool()
def fail(reason: str) -> str:
    """Fails."""
    raise ValueError(reason)


@server.tool(structured_output=False)
def show() -> list:
    """Gives content of every kind."""
    return [
        TextContent(text="two"),
        ImageContent(data=PIXEL, mime_type="image/png"),
        AudioContent(data=PIXEL, mime_type="audio/wav"),
        ResourceLink(uri="test://note", name="note", mime_type="text/plain"),
        EmbeddedResource(resource=TextResourceContents(uri="test://note", mime_type="text/plain", text="inside")),
    ]


@server.tool()
async def wait(seconds: float, context: Context) -> str:
    """Waits, and says how far it is."""
    global cancelled  # noqa: PLW0603
    steps = max(1, round(seconds / 0.15))
    try:
        for step in range(steps):
            await context.report_progress(step, steps, f"step {step}")
            await asyncio.sleep(seconds / steps)
    except asyncio.CancelledError:
        cancelled += 1
        raise
    return f"waited {seconds} s"


@server.tool()
def effect(context: Context) -> str:
    """Says the id of the effect that it got."""
    meta = context.request_context.meta or {}
    return dict(meta).get("pagantic/effect_id", "none")


@server.tool()
def count_cancelled() -> str:
    """Tells how many waits were cancelled."""
    return str(cancelled)


@server.tool()
async def grow(name: str, context: Context) -> str:
    """Adds a tool."""
    server.add_tool(lambda: "grown", name=name, description="Was not there before.")
    await context.notify_tools_changed()
    return "grown"


@server.tool()
def big(size_bytes: int) -> str:
    """Gives that many bytes."""
    return "x" * size_bytes


@server.tool()
def crash() -> str:
    """Ends the program."""
    os._exit(3)


@server.tool()
def environment() -> str:
    """Names its environment variables."""
    return " ".join(sorted(os.environ))


@server.tool()
async def ask(context: Context) -> str:
    """Asks the user."""

    class Answer(BaseModel):
        is_sure: bool

    answer = await context.elicit("Are you sure?", Answer)
    return answer.action


@server.resource("test://note", mime_type="text/plain")
def note() -> str:
    """A note."""
    return "remember"


@server.resource("test://picture", mime_type="image/png")
def picture() -> bytes:
    """A picture."""
    return b"\x89PNG"


@server.prompt()
def greet(name: str) -> str:
    """Greets."""
    return f"Say hello to {name}."


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int)
    parser.add_argument("--issuer")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    for tool in [*server._tool_manager._tools] if options.only else ():
        if tool not in options.only:
            server.remove_tool(tool)
    if options.sleep:
        time.sleep(options.sleep)
    sys.stderr.write("ready\n")
    if options.http is None:
        server.run()
    else:
        server.run("streamable-http", port=options.http, json_response=options.json)


if __name__ == "__main__":
    main()
