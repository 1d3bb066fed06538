"""Serves the protocol: tools, resources and prompts, each on behalf of the caller."""

from __future__ import annotations

import importlib.metadata
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from gateway.mcp import prompts, resources
from gateway.mcp.executions import Context, Executions
from gateway.mcp.mapping.failures import describe_failure
from gateway.mcp.settings import McpSettings
from gateway.mcp.tools import Tools
from gateway.web.callers import Callers
from pagantic_common.client import AsyncClient
from pagantic_common.domain import errors
from pagantic_common.domain.errors import PaganticError

NAME = "pagantic"
INSTRUCTIONS = (
    "ask answers with a model, extract gives JSON that satisfies a schema, vote asks several times and counts, plan "
    "works in steps. The other tools are the deployment's own. Resources are collections of documents."
)
_RESOURCE_NOT_FOUND = -32002  # Used by the protocol up to version 2025-11-25.
_CALLERS_FAULT = (errors.InvalidRequest, errors.NotFound, errors.PreconditionFailed, errors.Unsupported)
logger = logging.getLogger(__name__)
ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")


@asynccontextmanager
async def open_server(settings: McpSettings, address: str) -> AsyncIterator[tuple[Server[Any], Callers]]:
    """Yield a server for the deployment whose orchestrator is at this address, and the server's callers."""
    async with AsyncClient(address, timeout_s=settings.call_s) as client:
        callers = Callers(client)
        executions = Executions(callers, max_calls=settings.max_calls, call_s=settings.call_s, auth=settings.auth)
        yield make_server(callers, Tools(executions, callers)), callers


def make_server(callers: Callers, tools: Tools) -> Server[Any]:
    """Return a server that offers the deployment's tools, collections and prompt templates."""

    @_in_words
    async def list_tools(context: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=await tools.list(context))

    @_in_words
    async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
        return await tools.call(context, params)

    @_in_words
    async def list_resources(context: Context, _params: PaginatedRequestParams | None) -> ListResourcesResult:
        client = callers.client_for(context.request)
        return ListResourcesResult(resources=await resources.list_collections(client))

    @_in_words
    async def list_templates(_context: Context, _params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=resources.list_templates())

    @_in_words
    async def read_resource(context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        uri = str(params.uri)
        try:
            return ReadResourceResult(contents=[await resources.read(callers.client_for(context.request), uri)])
        except (errors.NotFound, errors.InvalidRequest) as error:
            code = _RESOURCE_NOT_FOUND if context.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS else INVALID_PARAMS
            raise MCPError(code, str(error), {"uri": uri}) from None

    @_in_words
    async def list_prompts(context: Context, _params: PaginatedRequestParams | None) -> ListPromptsResult:
        return ListPromptsResult(prompts=await prompts.list_prompts(callers.client_for(context.request)))

    @_in_words
    async def get_prompt(context: Context, params: GetPromptRequestParams) -> GetPromptResult:
        client = callers.client_for(context.request)
        return await prompts.get_prompt(client, params.name, params.arguments or {})

    return Server(
        NAME,
        version=importlib.metadata.version("pagantic"),
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        get_tool_input_schema=tools.schema_of,
    )


def _in_words(handle: Callable[ParamsT, Awaitable[ResultT]]) -> Callable[ParamsT, Awaitable[ResultT]]:
    """Convert errors into errors of the protocol, without the details of unexpected errors."""

    @wraps(handle)
    async def handle_in_words(*args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        try:
            return await handle(*args, **kwargs)
        except MCPError:
            raise
        except PaganticError as error:
            raise _protocol_error_of(error) from None
        except Exception:
            error_id = uuid.uuid4().hex[:16]
            logger.exception("error %s", error_id)
            raise MCPError(INTERNAL_ERROR, f"the server failed: its log has more under {error_id}") from None

    return handle_in_words


def _protocol_error_of(error: PaganticError) -> MCPError:
    failure = describe_failure(error)
    code = INTERNAL_ERROR
    if isinstance(error, _CALLERS_FAULT):
        code = INVALID_PARAMS
    data = {"code": failure.code, "next_step": failure.next_step, "is_retryable": failure.is_retryable}
    return MCPError(code, failure.message, data)
