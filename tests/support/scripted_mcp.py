"""Model Context Protocol servers that are lists and functions."""

import asyncio
from contextlib import asynccontextmanager

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import ToolFailed, ToolProgress
from services.tools.core.servers import (
    FilledPrompt,
    OfferedTool,
    Page,
    PromptMessage,
    ResourceContents,
    ToolHints,
    ToolList,
)
from services.tools.ports import ServerLost

OBJECT = '{"type":"object"}'


def offered(name, description="Does.", parameters_json=OBJECT, **hints):
    return OfferedTool(name, description, parameters_json, ToolHints(**hints))


class ScriptedServer:
    """A server whose tools, state and sessions a test changes; every session it opened is in `sessions`."""

    def __init__(self, *tools):
        self.tools = list(tools)
        self.others = {}
        self.is_up = True
        self.sessions = []

    @asynccontextmanager
    async def open(self, _spec):
        if not self.is_up:
            raise ServerLost("it is down")
        session = ScriptedSession(self)
        self.sessions.append(session)
        try:
            yield session
        finally:
            session.end("its session was closed")

    def change(self, *tools):
        self.tools = list(tools)
        for session in self.sessions:
            session.has_news.set()

    def go_down(self):
        self.is_up = False
        for session in self.sessions:
            session.end("it went down")


class ScriptedSession:
    """Answers at once: `echo` gives its text back, `fail` fails, `wait` never ends."""

    protocol_version = "2026-07-28"

    def __init__(self, server):
        self._server = server
        self._end_reason = ""
        self._ended = asyncio.Event()
        self.has_news = asyncio.Event()
        self.cancelled = []

    def end(self, reason):
        self._end_reason = self._end_reason or reason
        self._ended.set()
        self.has_news.set()

    def _check(self):
        if self._end_reason:
            raise ServerLost(self._end_reason)

    async def wait_for_change(self):
        await self.has_news.wait()
        self.has_news.clear()
        self._check()

    async def list_tools(self):
        self._check()
        return ToolList(tuple(self._server.tools), self._server.others)

    async def call_tool(self, name, arguments, report):
        self._check()
        if name == "fail":
            raise ToolFailed(arguments["reason"])
        if name == "wait":
            report(ToolProgress(0, 1, "waits"))
            try:
                await self._ended.wait()
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
            self._check()
        return arguments.get("text", "")

    async def list_resources(self, page_token):
        return Page(())

    async def read_resource(self, uri):
        if uri != "test://note":
            raise InvalidRequest(f"there is no resource {uri!r}")
        return (ResourceContents(uri, "text/plain", "remember"),)

    async def list_prompts(self, page_token):
        return Page(())

    async def get_prompt(self, name, arguments):
        return FilledPrompt("", (PromptMessage("user", f"Say hello to {arguments['name']}."),))
