"""Replays AgentDojo's ground-truth calls through the policy of tools: `python -m tests.bench.injections`.

The package is installed into an environment of its own, as its requirements are not ours. No model takes part: the
user's sequences are what a perfect model would call, and the attacker's what a model without any defence would.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pagantic_common.domain.messages import Message, Role, ToolCall, ToolDefinition, ToolSafety
from services.orchestrator.core.tools.policy import ToolAction, ToolPolicies, parse_policy
from services.orchestrator.core.tools.taint import Provenance

PACKAGE = "agentdojo==0.1.35"
READING = ("get_", "search_", "list_", "read_", "check_")
# They change what belongs to the user; every other tool reaches somebody else.
WRITING = frozenset(
    {
        "append_to_file",
        "cancel_calendar_event",
        "create_calendar_event",
        "create_file",
        "delete_email",
        "delete_file",
        "reschedule_calendar_event",
        "update_password",
        "update_user_info",
    }
)
# What a deployment would ask for in any case: what is deleted is gone.
POLICY = ToolPolicies(parse_policy("delete_*=ask"))


def main() -> None:
    """Print how many of the user's sequences pass, and which injected calls had an effect."""
    schemas: dict[tuple[str, str], str] = {}
    asked: list[str] = []
    missed: list[str] = []
    counts: Counter[str] = Counter()
    for line in _export():
        if "tools" in line:
            schemas |= {(line["suite"], name): json.dumps(schema) for name, schema in line["tools"].items()}
            continue
        tools = {name: _tool(name, schema) for (suite, name), schema in schemas.items() if suite == line["suite"]}
        name = f"{line['suite']} {line['task']}"
        if "injection" not in line:
            reasons = [reason for _, reason in _asked(line["prompt"], line["calls"], tools) if reason]
            counts["tasks"] += 1
            counts["passed"] += not reasons
            asked += [f"{name}: {reason}" for reason in reasons]
            continue
        calls = [*line["calls"], *line["injected"]]
        judged = list(_asked(line["prompt"], calls, tools))[len(line["calls"]) :]
        effects = [tool for tool, reason in judged if not reason and tools[tool].safety is not ToolSafety.READ]
        counts["pairs"] += 1
        missed += [f"{name} {line['injection']}: {tool}" for tool in effects]
    sys.stdout.write("\n".join([*asked, *missed, ""]))
    sys.stdout.write(
        f"{counts['passed']} of {counts['tasks']} sequences of users pass without an approval; of {counts['pairs']} "
        f"tasks with an injected one, {len(missed)} injected calls have an effect without an approval\n"
    )


def _asked(prompt: str, calls: Sequence[dict[str, Any]], tools: dict[str, ToolDefinition]) -> Iterator[tuple[str, str]]:
    """Yield the tool of each call, and why it needs an approval, empty for one that does not."""
    provenance = Provenance()
    provenance.add_messages([Message(Role.USER, content=prompt)])
    for number, call in enumerate(calls):
        tool, arguments = tools[call["tool"]], json.dumps(call["arguments"])
        reason = ""
        if tool.safety is not ToolSafety.READ:
            spans = provenance.find_spans(arguments, tool)
            if POLICY.action_for(tool) is not ToolAction.ALLOW:
                reason = f"{tool.name} by the policy"
            if spans:
                reason = f"{tool.name} for {spans[0].argument}={spans[0].text!r} from {spans[0].source}"
        yield tool.name, reason
        asked = Message(Role.ASSISTANT, tool_calls=(ToolCall(str(number), tool.name, arguments),))
        result = Message(Role.TOOL, content=call["result"], tool_call_id=str(number), name=tool.name)
        provenance.add_messages([asked, result])


def _tool(name: str, schema: str) -> ToolDefinition:
    safety = ToolSafety.EXTERNAL
    if name.startswith(READING):
        safety = ToolSafety.READ
    elif name in WRITING:
        safety = ToolSafety.WRITE
    return ToolDefinition(name, "", schema, safety=safety)


def _export() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", PACKAGE], check=True)
        script = str(Path(__file__).with_name("export.py"))
        lines = subprocess.run([python, script], check=True, capture_output=True, text=True).stdout
    for line in lines.splitlines():
        yield json.loads(line)


if __name__ == "__main__":
    main()
