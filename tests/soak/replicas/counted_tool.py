"""A tool that writes down each of its runs, into the file that an environment variable names."""

import os

from pagantic_common.telemetry.scope import current_scope
from pagantic_common.tools import tool

RUNS_FILE = "SOAK_TOOL_RUNS"


@tool(safety="none", idempotent=False)
async def count_run() -> str:
    """Count one more."""
    scope = current_scope()
    line = f"{scope.request_id} {scope.step_name or '-'} {scope.caused_by or '-'}\n"
    descriptor = os.open(os.environ[RUNS_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
    return "counted"
