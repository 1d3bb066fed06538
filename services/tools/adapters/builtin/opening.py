"""Opens the built-in tools that the deployment enables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pagantic_common.domain.clock import Clock
from services.tools.adapters.builtin.computing import computing_tools, make_json_workers
from services.tools.adapters.builtin.fetching import HttpFetchTool
from services.tools.adapters.builtin.files import file_tools
from services.tools.adapters.builtin.programs import open_program_tool
from services.tools.adapters.builtin.python_code import open_python_tool
from services.tools.adapters.builtin.rooted_files import RootedFiles
from services.tools.adapters.builtin.sql import SqlQueryTool, make_sql_workers
from services.tools.core.destinations import AllowedHost, Allowlist
from services.tools.ports import Tool


@dataclass(frozen=True, slots=True)
class BuiltinOptions:
    """The limits and resources of the built-in tools. A tool without its resource is not offered."""

    max_result_bytes: int = 65_536
    fetch_hosts: tuple[AllowedHost, ...] = ()
    fetch_max_bytes: int = 32_768
    file_roots: Mapping[str, Path] = field(default_factory=dict)
    writable_roots: Mapping[str, Path] = field(default_factory=dict)
    sql_databases: Mapping[str, Path] = field(default_factory=dict)
    is_python_offered: bool = True
    are_programs_offered: bool = False


@asynccontextmanager
async def open_builtin_tools(options: BuiltinOptions, clock: Clock) -> AsyncIterator[list[Tool]]:
    """Yield the tools. Their worker processes end with the context."""
    async with AsyncExitStack() as stack:
        tools = computing_tools(clock, await stack.enter_async_context(make_json_workers()))
        if options.fetch_hosts:
            allowlist = Allowlist(options.fetch_hosts)
            tools.append(HttpFetchTool(allowlist, options.fetch_max_bytes, options.max_result_bytes))
        tools += file_tools(RootedFiles(options.file_roots, options.writable_roots))
        if options.sql_databases:
            sql_workers = await stack.enter_async_context(make_sql_workers(options.sql_databases))
            tools.append(SqlQueryTool(options.sql_databases, options.max_result_bytes, sql_workers))
        if options.are_programs_offered:
            tools.append(await open_program_tool(options.max_result_bytes))
        if options.is_python_offered:
            tools.append(await stack.enter_async_context(open_python_tool(options.max_result_bytes)))
        yield tools
