"""An open session with a server through the official SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

from mcp import Client, MCPError, types
from mcp.client.subscriptions import SubscriptionLost
from mcp.types import CONNECTION_CLOSED, INVALID_REQUEST
from pydantic import ValidationError

from pagantic_common.domain.errors import InvalidRequest, Unavailable
from pagantic_common.domain.messages import ToolFailed
from pagantic_common.grammar.schema_problems import describe_problem
from pagantic_common.grammar.schema_validator import SchemaError, Validator, build_validator
from pagantic_common.telemetry.logging import get_logger
from pagantic_common.telemetry.scope import current_effect_id
from pagantic_common.tools.call import ToolContext
from pagantic_common.tools.function import MAX_TIMEOUT_S
from services.tools.adapters.mcp.contents import (
    contents_of,
    prompt_of,
    resource_of,
    text_of_block,
    text_of_result,
    tool_of,
)
from services.tools.adapters.mcp.tool_listing import MAX_PAGES, MAX_REASON_CHARS, ToolListFilter, ToolListing, places_of
from services.tools.core.servers import (
    FilledPrompt,
    OfferedTool,
    Page,
    Prompt,
    PromptMessage,
    Resource,
    ResourceContents,
    ToolList,
)
from services.tools.ports import Report, ServerLost

log = get_logger(__name__)

_MAX_PROBLEM_CHARS = 300
EFFECT_ID_KEY = "pagantic/effect_id"  # the key of the id in `_meta` of the protocol
ResultT = TypeVar("ResultT")

_LISTEN_AGAIN_S = 5.0
# The SDK's messages for a lost connection. The codes do not suffice, because errors of servers may have the same codes.
_LOST = frozenset(
    {
        "Connection closed",
        "Session terminated",
        "SSE stream ended without a response",
        "SSE stream ended and reconnection attempts were exhausted",
    }
)


class OutputCheck:
    """Validates the results of a session's tools, because the SDK's check may take exponential time on patterns."""

    def __init__(self) -> None:
        self._validators: dict[str, Validator] = {}

    def learn(self, tools: Iterable[types.Tool]) -> None:
        """Replace the validators with validators for these tools. An unusable schema is logged and then ignored."""
        self._validators = {}
        for tool in tools:
            if tool.output_schema is None:
                continue
            try:
                self._validators[tool.name] = build_validator(tool.output_schema, mask="the value")
            except SchemaError as error:
                log.warning("an output schema of an mcp server is not used", tool=tool.name[:80], reason=str(error))

    async def check(self, name: str, result: types.CallToolResult) -> None:
        """Raise ToolFailed if structured content violates the tool's schema."""
        validator = self._validators.get(name)
        if validator is None or result.structured_content is None:
            return
        try:
            problem = next(iter(validator.iter_errors(result.structured_content)), None)
        except ValueError:  # the value exceeds the validator's limit on nesting
            raise ToolFailed("its result is nested too deeply to be checked") from None
        if problem is not None:
            words = describe_problem(problem)[:_MAX_PROBLEM_CHARS]
            raise ToolFailed(f"its result does not have the form that it declares: {words}")


class SdkSession:
    """An open session with a server. The code that opens it must close it."""

    def __init__(self, client: Client, has_news: asyncio.Event, max_tools: int, max_tool_bytes: int) -> None:
        self._client = client
        self._has_news = has_news
        self._end_reason = ""
        self._outputs = OutputCheck()
        client.session.validate_tool_result = self._outputs.check  # type: ignore[method-assign]
        self._start_listing = partial(ToolListing, client.protocol_version, max_tools, max_tool_bytes)
        self._filter = ToolListFilter(client.session, self._start_listing())

    @property
    def protocol_version(self) -> str:
        """The protocol version that client and server use."""
        return self._client.protocol_version

    def end(self, reason: str) -> None:
        """Record that the connection has ended."""
        self._end_reason = self._end_reason or reason
        self._has_news.set()

    async def wait_for_change(self) -> None:
        """Wait until the tools may have changed or the connection may have ended. Raises ServerLost."""
        await self._has_news.wait()
        self._has_news.clear()
        self._check_open()

    async def follow_changes(self) -> None:
        """Subscribe to changes of the tools until cancelled, or until the server refuses the subscription."""
        while True:
            try:
                await self._follow_subscription()
            except (MCPError, TimeoutError):  # the server refuses subscriptions
                self._has_news.set()
                return
            except SubscriptionLost:
                self._has_news.set()
            await asyncio.sleep(_LISTEN_AGAIN_S)

    async def _follow_subscription(self) -> None:
        async with self._client.listen(tools_list_changed=True) as changes:
            async for _ in changes:
                self._has_news.set()

    async def list_tools(self) -> ToolList:
        """Return the tools of all pages in the server's order. The defective tools of a page follow its other tools.

        Both the number of tools and the time for a server's list are limited.
        """
        self._check_open()
        if self._client.server_capabilities.tools is None:
            return ToolList()
        tools: list[types.Tool] = []
        offered: list[OfferedTool] = []
        cursor: str | None = None
        listing = self._filter.listing = self._start_listing()
        for _ in range(MAX_PAGES):
            try:
                page = await self._client.list_tools(cursor=cursor)
            except (MCPError, ValidationError) as error:
                raise ServerLost(f"its tools cannot be listed: {words_of(error)}") from None
            tools += page.tools
            offered += [*map(tool_of, page.tools), *listing.pop_left_out()]
            cursor = page.next_cursor
            if cursor is None or listing.is_cut:
                break
        self._outputs.learn(tools)
        return ToolList(tuple(offered), listing.describe_others(has_more_pages=cursor is not None))

    async def call_tool(self, name: str, arguments: Mapping[str, Any], report: Report) -> str:
        """Call a tool. The caller limits the time."""
        self._check_open()
        context = ToolContext(report)

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            with suppress(ValueError):  # a number is not finite
                context.report(progress, total, message or "")

        try:
            result = await self._client.call_tool(
                name,
                dict(arguments),
                read_timeout_seconds=MAX_TIMEOUT_S,
                progress_callback=on_progress,
                meta=_meta(),
            )
        except MCPError as error:
            self._check_answered(error)
            raise ToolFailed(f"its server refuses the call: {words_of(error)}") from None
        except (ValidationError, RuntimeError) as error:
            self._check_open()
            raise ToolFailed(f"its server's answer breaks the protocol: {words_of(error)}") from None
        finally:
            context.cancel()
        text = text_of_result(result)
        if result.is_error:
            raise ToolFailed(text or "it gives no reason")
        return text

    async def list_resources(self, page_token: str) -> Page[Resource]:
        """Return a page of resources."""
        page = await self._ask(lambda: self._client.list_resources(cursor=page_token or None))
        return Page(tuple(map(resource_of, page.resources)), page.next_cursor or "")

    async def read_resource(self, uri: str) -> Sequence[ResourceContents]:
        """Return the contents of a resource."""
        return contents_of((await self._ask(lambda: self._client.read_resource(uri))).contents)

    async def list_prompts(self, page_token: str) -> Page[Prompt]:
        """Return a page of prompts."""
        page = await self._ask(lambda: self._client.list_prompts(cursor=page_token or None))
        return Page(tuple(map(prompt_of, page.prompts)), page.next_cursor or "")

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> FilledPrompt:
        """Return a prompt filled in with the arguments."""
        prompt = await self._ask(lambda: self._client.get_prompt(name, dict(arguments)))
        messages = tuple(PromptMessage(message.role, text_of_block(message.content)) for message in prompt.messages)
        return FilledPrompt(prompt.description or "", messages)

    async def _ask(self, send: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Send a request that is not a tool call. Raises InvalidRequest or Unavailable."""
        try:
            self._check_open()
            return await send()
        except MCPError as error:
            reason = words_of(error)
            if self._is_lost(error):
                raise Unavailable(f"the server was lost: {reason}") from None
            raise InvalidRequest(f"the server refuses the request: {reason}") from None
        except ServerLost as lost:
            raise Unavailable(f"the server was lost: {lost}") from None
        except (ValidationError, RuntimeError) as error:
            raise InvalidRequest(f"the server's answer breaks the protocol: {words_of(error)}") from None

    def _check_open(self) -> None:
        if self._end_reason:
            raise ServerLost(self._end_reason)

    def _check_answered(self, error: MCPError) -> None:
        """Raise ServerLost if the error means that the server did not respond."""
        if self._is_lost(error):
            self._check_open()
            raise ServerLost(words_of(error))

    def _is_lost(self, error: MCPError) -> bool:
        if error.code in (CONNECTION_CLOSED, INVALID_REQUEST):
            self._has_news.set()  # the owner then lists the tools again, which checks the server
        return error.message in _LOST


def words_of(error: Exception) -> str:
    """Return the error message of a server or the SDK, shortened to one line and without callers' values."""
    if isinstance(error, ValidationError):
        return f"wrong fields: {places_of(error, 0, 3)}"[:MAX_REASON_CHARS]
    return " ".join(str(error).split())[:MAX_REASON_CHARS].encode(errors="replace").decode()


def _meta() -> types.RequestParamsMeta | None:
    effect_id = current_effect_id()
    return cast("types.RequestParamsMeta", {EFFECT_ID_KEY: effect_id}) if effect_id else None
