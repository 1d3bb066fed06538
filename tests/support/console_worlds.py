"""What the services behind the console do in its tests."""

import asyncio
import json

from pagantic_common.domain.errors import Unavailable
from pagantic_common.domain.messages import ToolCall, ToolSafety
from tests.support.scripted_services import (
    ScriptedConstraint,
    ScriptedInference,
    ScriptedTools,
    answer,
    scripted_services,
)

CALL = ToolCall("c1", "clock", '{"zone": "UTC"}')
SCHEMA = json.dumps({"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]})
QUOTE = "The red lamp costs 42"
CITED = {"in_sources": True, "claims": [{"source": 1, "quote": QUOTE, "text": "It costs 42."}]}
LAMPS = f"We sell lamps.\n\n{QUOTE}, and the green one 17.\n"
ASK = [{"tool": "*", "action": "TOOL_ACTION_ASK"}]


def with_tool(*outputs, **tools):
    """Return services whose model calls a tool first, unless other outputs are given."""
    outputs = outputs or (answer("", calls=[CALL]), answer("It is noon."))
    return scripted_services(ScriptedInference(*outputs), tools=ScriptedTools(**tools))


def with_writing_tool():
    return with_tool(safety=ToolSafety.WRITE)


def with_votes():
    """Return services whose replicas vote two to one, and of which one abstains."""
    said = [answer('{"total": 42}'), answer('{"total": 42}'), answer('{"total": 17}'), answer("bad")]
    return scripted_services(ScriptedInference(*said), ScriptedConstraint("bad"))


def with_retries():
    """Return services whose model calls a tool, and then gives an output that is not valid, before a valid one."""
    said = [answer("", calls=[CALL]), answer("It is noon."), answer("bad"), answer('{"total": 42}')]
    return scripted_services(ScriptedInference(*said), ScriptedConstraint("bad"))


def with_plan():
    """Return services that lose the first inference of a plan; the next output is not valid."""
    said = [Unavailable("gone"), answer("bad"), answer('{"total": 42}'), answer("done")]
    return scripted_services(ScriptedInference(*said), ScriptedConstraint("bad"))


VOTE = {
    "mode": "MODE_REDUNDANT",
    "output": {"schema_json": SCHEMA},
    "voting": {"n": 4},
}
PLAN = {
    "mode": "MODE_PLAN",
    "plan": {
        "steps": [
            {"name": "time", "kind": "tool", "parameters_json": json.dumps({"tool": "clock", "arguments": {}})},
            {
                "name": "sum",
                "kind": "infer",
                "depends_on": ["time"],
                "output": {"schema_json": SCHEMA},
                "retry": {"max_retries": 3},
            },
            {"name": "say", "kind": "infer", "depends_on": ["sum"]},
        ]
    },
}
STRUCTURED = {
    "mode": "MODE_STRUCTURED",
    "output": {"schema_json": SCHEMA},
    "tools": ["clock"],
    "retry": {"max_retries": 2},
}


async def waits(opened, request_id):
    """Run a request whose tool call waits for a decision, and return its task."""
    task = asyncio.create_task(opened.execute(request_id, tool_rules=ASK))
    for _ in range(1500):
        found = (await opened.server.http.get("/v1/approvals", params={"request_id": request_id})).json()
        if found["approvals"]:
            return task
        await asyncio.sleep(0.02)
    raise AssertionError("no call waits")
