"""A tool that runs Python programs in the sandbox."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from pagantic_common.domain.messages import ToolDefinition, ToolFailed, ToolSafety
from services.tools.adapters.builtin.parameters import object_schema
from services.tools.adapters.builtin.sandbox import Ending, Sandbox, SandboxUnavailable, open_sandbox
from services.tools.ports import Report, make_places

MAX_PROGRAM_CHARS = 50_000
MAX_RUN_S = 10.0
MAX_CONCURRENT_PROGRAMS = 3
MAX_PROGRAMS_OF_TENANT = 2
_MAX_ERROR_CHARS = 3000
_SIGNALLED = 128  # bubblewrap adds this to the number of the signal that ended a program


class RunProgramTool:
    """Runs a Python program.

    Args:
        sandbox: Runs the programs. None if the machine has no sandbox.
        max_bytes: The maximum size of the output of a program.
        unavailable_reason: The reason for the missing sandbox.
    """

    definition = ToolDefinition(
        name="run_program",
        description=(
            "Runs a Python 3 program with the standard library, without network and without other files than those "
            "that it makes. The result is what it prints."
        ),
        parameters_json=object_schema(
            ("program",),
            program={
                "type": "string",
                "description": "the source of the program; it prints its result",
                "minLength": 1,
                "maxLength": MAX_PROGRAM_CHARS,
            },
        ),
        safety=ToolSafety.NONE,
        idempotent=True,
        timeout_s=2 * MAX_RUN_S,
    )
    is_remote = False

    def __init__(self, sandbox: Sandbox | None, max_bytes: int, unavailable_reason: str = "") -> None:
        self._sandbox = sandbox
        self._max_bytes = max_bytes
        self.places = make_places(MAX_CONCURRENT_PROGRAMS, MAX_PROGRAMS_OF_TENANT)
        self.unavailable_reason = unavailable_reason

    async def run(self, arguments: Mapping[str, Any], _report: Report) -> str:
        """Return the program's output. Raises ToolFailed with the end of the output if the program failed."""
        program = arguments["program"]
        if self._sandbox is None:
            raise ToolFailed(self.unavailable_reason)
        if any("\ud800" <= character <= "\udfff" for character in program):
            raise ToolFailed("the program is not valid Unicode")
        ending = await self._sandbox.run(program, self._max_bytes, MAX_RUN_S)
        return _result_of(ending, self._max_bytes)


def _result_of(ending: Ending, max_bytes: int) -> str:
    if ending.is_output_too_large:
        raise ToolFailed(f"the program printed more than {max_bytes} bytes: print less")
    if ending.status is None:
        raise ToolFailed(f"the program did not end within {MAX_RUN_S:g} s: do less")
    output = ending.output.decode(errors="replace")
    if ending.status == 0:
        return output
    raise ToolFailed(f"the program {_words_of(ending.status)}: {output[-_MAX_ERROR_CHARS:]}")


def _words_of(status: int) -> str:
    if status <= _SIGNALLED:
        return f"ended with exit status {status}"
    try:
        return f"was stopped by {signal.Signals(status - _SIGNALLED).name}"
    except ValueError:
        return f"ended with exit status {status}"


async def open_program_tool(max_bytes: int) -> RunProgramTool:
    """Return the tool. It is unavailable if the sandbox cannot be created."""
    try:
        return RunProgramTool(await open_sandbox(), max_bytes)
    except SandboxUnavailable as error:
        return RunProgramTool(None, max_bytes, str(error))
