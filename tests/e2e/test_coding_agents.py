"""Coding agents as they are installed, one turn with a tool, before a gateway whose model is scripted.

The model calls the agent's own tool for shell commands, and then says what the command printed.
"""

import asyncio
import json
import os
from pathlib import Path

import pytest

from pagantic_common.domain.messages import Role, ToolCall
from tests.support import needs
from tests.support.client_programs import WHOLE
from tests.support.http_app import serving_http
from tests.support.mcp_app import deployment
from tests.support.node_packages import INSTALL_S, installed
from tests.support.scripted_services import ScriptedInference, answer, scripted_services

AGENTS = Path(__file__).parent / "node_agents"
TURN_S = 120
pytestmark = pytest.mark.timeout(INSTALL_S + TURN_S + 60)

PROGRAMS = {"claude": "@anthropic-ai/claude-code/cli-wrapper.cjs", "codex": "@openai/codex/bin/codex.js"}
SHOWN = "pagantic-was-here"
COMMAND = f"echo {SHOWN}"
SHELLS = {  # the arguments of each agent's tool
    "Bash": {"command": COMMAND, "description": "Prints a word."},
    "exec_command": {"cmd": COMMAND},
    "shell_command": {"command": COMMAND},
    "shell": {"command": ["bash", "-lc", COMMAND]},
}


class ShellUser(ScriptedInference):
    """Calls the shell of its caller once, and then says what it printed. Without a shell it says a word."""

    async def infer(self, command, hints):
        shell = next((tool.name for tool in command.tools if tool.name in SHELLS), None)
        results = [message.content for message in command.messages if message.role is Role.TOOL]
        if results:
            self.outputs = [answer(f"It printed {results[-1].strip()[-400:]}")]
        elif shell is not None:
            self.outputs = [answer("I look.", calls=[ToolCall("call_1", shell, json.dumps(SHELLS[shell]))])]
        else:
            self.outputs = [answer("A title")]
        async for piece in super().infer(command, hints):
            yield piece


@pytest.fixture(autouse=True)
def whole():
    if not WHOLE:
        needs.skip_without(needs.TIME_FOR_CLIENTS)


@pytest.fixture
async def run(tmp_path):
    """Run an agent in an empty home and an empty folder against a gateway; returns what it printed and the model."""
    folder = installed(AGENTS)
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    inference = ShellUser()
    services = scripted_services(inference=inference)
    async with deployment(tmp_path / "state", services) as world, serving_http(world, models={"*": ""}) as served:

        async def run_agent(program, *arguments, **environment):
            url = str(served.http.base_url).rstrip("/")
            filled = {name: value.replace("URL", url) for name, value in environment.items()}
            process = await asyncio.create_subprocess_exec(
                "node",
                folder / "node_modules" / PROGRAMS[program],
                *(argument.replace("URL", url) for argument in arguments),
                cwd=work,
                env={"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **filled},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(TURN_S):
                    printed, noted = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            return process.returncode, printed.decode(), noted.decode(), inference

        yield run_agent


def check_turn(code, printed, noted, inference):
    """Check that the agent ran the command that the model asked for, and showed the answer after it."""
    assert code == 0, f"{printed}\n{noted}"
    assert SHOWN in printed.partition("It printed")[2], f"{printed}\n{noted}"
    tools = {tool.name for command in inference.commands for tool in command.tools}
    assert tools & SHELLS.keys()
    roles = [message.role for message in inference.commands[-1].messages]
    assert Role.TOOL in roles


async def test_claude_code_takes_a_turn_with_a_tool(run):
    check_turn(
        *await run(
            "claude",
            "-p",
            "Print a word.",
            "--allowedTools",
            "Bash",
            ANTHROPIC_BASE_URL="URL",
            ANTHROPIC_API_KEY="any",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
        )
    )


async def test_codex_takes_a_turn_with_a_tool(run):
    provider = '{name="pagantic", base_url="URL/v1", wire_api="responses", env_key="PAGANTIC_KEY"}'
    check_turn(
        *await run(
            "codex",
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            "--model",
            "any",
            "--config",
            'model_provider="pagantic"',
            "--config",
            f"model_providers.pagantic={provider}",
            "Print a word.",
            PAGANTIC_KEY="any",
        )
    )
