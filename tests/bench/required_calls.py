"""How many tool calls satisfy their schemas: `python -m tests.bench.required_calls [--auto] [--count N] [--model M]`.

The tasks of the Berkeley Function Calling Leaderboard, each with its own tools, are asked of a running system with
`tool_choice` required, or with `--auto`, which leaves the choice to the model. Calls that a limit of tokens cut are
counted apart. Each finished call must name a tool that was offered, with arguments that its schema allows. Whether it
solves the task is up to the model, and counted too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter

import jsonschema_rs

from pagantic_common.client import Client
from pagantic_common.domain.errors import PaganticError
from tests.bench.leaderboard import Task, read_tasks

MAX_TOKENS = 512


def main() -> int:
    """Print the counts; 1 when a finished call breaks its schema."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--address", default=None)
    parser.add_argument("--auto", action="store_true")
    parser.add_argument("--model", default="")
    options = parser.parse_args()
    tasks = list(read_tasks())
    counts: Counter[str] = Counter()
    with Client(options.address) as client:
        for task in tasks[:: max(1, len(tasks) // options.count)][: options.count]:
            choice = "auto" if options.auto else "required"
            counts.update(_outcome_of(client, task, choice, options.model))
    sys.stdout.write(", ".join(f"{count} {name}" for name, count in sorted(counts.items())) + "\n")
    return int(counts["calls that break their schema"] > 0)


def _outcome_of(client: Client, task: Task, choice: str, model: str) -> Counter[str]:
    try:
        response = client.chat(
            task.words, client_tools=task.tools, tool_choice=choice, max_tokens=MAX_TOKENS, temperature=0, model=model
        )
    except PaganticError as error:
        return Counter({f"tasks failed ({error.code})": 1})
    schemas = {tool.name: json.loads(tool.parameters_json) for tool in task.tools}
    outcome: Counter[str] = Counter(tasks=1)
    for call in response.tool_calls:
        is_valid = call.name in schemas and jsonschema_rs.is_valid(schemas[call.name], json.loads(call.arguments_json))
        outcome["calls that satisfy their schema" if is_valid else "calls that break their schema"] += 1
        if not is_valid:
            sys.stdout.write(f"{call.name} {call.arguments_json}\n")
    outcome["tasks answered in words"] += not response.tool_calls
    outcome["tasks whose tools were called"] += task.solution <= {call.name for call in response.tool_calls}
    return outcome


if __name__ == "__main__":
    sys.exit(main())
