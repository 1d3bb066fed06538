"""Entry point of the tools service: `python -m services.tools`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from pagantic.tools.v1 import tools_service_pb2_grpc as pb_grpc
from pagantic_common.rpc.access.registration import Registration
from pagantic_common.rpc.access.tls.service_callers import guard_of
from pagantic_common.rpc.process.program import Program
from pagantic_common.telemetry.clock import SystemClock
from services.tools.adapters.builtin.opening import BuiltinOptions, open_builtin_tools
from services.tools.adapters.loading import load_hooks, load_tools
from services.tools.adapters.tool_rates import ToolRates
from services.tools.app.execution import ExecutionLimits, ToolExecutor
from services.tools.app.providers import Providers
from services.tools.app.registry import ToolRegistry
from services.tools.servicer import PROVIDER_SCOPES, SCOPES, ToolProviderServicer, ToolServicer
from services.tools.settings import ToolsSettings
from services.tools.wiring import SOURCE_LIMITS, SourceLimits, open_apis, open_mcp_servers


@asynccontextmanager
async def open_app(
    settings: ToolsSettings, source_limits: SourceLimits = SOURCE_LIMITS
) -> AsyncIterator[Sequence[Registration]]:
    """Wire the service. Raises InvalidRequest if a setting is invalid, for example a module without tools."""
    clock = SystemClock()
    own = load_tools(settings.modules, is_installed_included=settings.installed)
    async with open_builtin_tools(_builtin_options(settings), clock) as builtin:
        registry = ToolRegistry([*builtin, *own])
        limits = ExecutionLimits(
            default_timeout_s=settings.default_timeout_s,
            max_retries=settings.max_retries,
            max_result_bytes=settings.max_result_bytes,
        )
        executor = ToolExecutor(registry, clock, limits, ToolRates(settings.rates), load_hooks(settings.hooks))
        guard, providers = guard_of("tools", settings), Providers(registry, clock)
        async with (
            open_apis(settings, registry, source_limits),
            open_mcp_servers(settings, registry, source_limits, clock) as servers,
        ):
            servicer = ToolServicer(registry, executor, servers, clock)
            yield [
                Registration(
                    "pagantic.tools.v1.ToolService",
                    partial(pb_grpc.add_ToolServiceServicer_to_server, servicer),
                    SCOPES,
                    guard,
                ),
                Registration(
                    "pagantic.tools.v1.ToolProviderService",
                    partial(pb_grpc.add_ToolProviderServiceServicer_to_server, ToolProviderServicer(providers)),
                    PROVIDER_SCOPES,
                    guard,
                ),
            ]


def _builtin_options(settings: ToolsSettings) -> BuiltinOptions:
    return BuiltinOptions(
        max_result_bytes=settings.max_result_bytes,
        fetch_hosts=settings.fetch_hosts,
        file_roots=settings.file_roots,
        writable_roots=settings.writable_roots,
        sql_databases=settings.sql_databases,
        is_python_offered=settings.python,
        are_programs_offered=settings.run_programs,
    )


PROGRAM = Program("tools", ToolsSettings, open_app)

if __name__ == "__main__":
    PROGRAM.run()
