"""How often the right tool is among the first of a thousand: `python -m tests.bench.tool_search`.

Tools and tasks are those of the Berkeley Function Calling Leaderboard, whose package is fetched into a temporary
folder. A task with several tools counts when all of them are found. `--inference ADDRESS` also counts the tokens
that the tools take in a prompt of that service's default model, which a model is offered under the default settings.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from pagantic.inference.v1 import generation_pb2, inference_service_pb2, inference_service_pb2_grpc
from pagantic_common.codec.messages import message_to_proto, tool_choice_to_proto, tool_definition_to_proto
from pagantic_common.domain.messages import Message, Role, ToolChoice, ToolChoiceMode, ToolDefinition
from services.orchestrator.core.tools.selection import MAX_SEARCHED, select
from services.orchestrator.settings import OrchestratorSettings
from services.tools.core.tool_search import ToolIndex

PACKAGE = "bfcl-eval==2026.3.23"
CATEGORIES = ("simple_python", "multiple", "live_simple", "live_multiple", "parallel")
TOOL_COUNT = 1000
FIRST = (1, 3, 5, 10)
TURNS = 3
COUNTED = 20  # of so many tasks, one has its tokens counted
# The leaderboard's words for types.
TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def main() -> None:
    """Print how often the tools of a task are found, and how long a search takes."""
    tools: dict[str, ToolDefinition] = {}
    tasks: list[tuple[str, set[str]]] = []
    for entry, answer in _entries():
        for function in entry["function"]:
            parameters = re.sub(r'"type": "(dict|float|tuple)"', _type_of, json.dumps(function["parameters"]))
            definition = ToolDefinition(function["name"].replace(".", "_"), function["description"], parameters)
            tools.setdefault(definition.name, definition)
        words = [message["content"] for turn in entry["question"] for message in turn if message["role"] == "user"]
        tasks.append((words[-1], {name.replace(".", "_") for call in answer["ground_truth"] for name in call}))
    kept = dict(sorted(tools.items(), key=lambda one: hash_of(one[0]))[:TOOL_COUNT])
    tasks = [task for task in tasks if task[1] <= kept.keys()]
    started_s = time.perf_counter()
    index = ToolIndex(list(kept.values()))
    built_s = time.perf_counter() - started_s
    found, took_ms = _measure(index, tasks)
    if len(sys.argv) > 2 and sys.argv[1] == "--inference":
        asyncio.run(_count_tokens(sys.argv[2], index, list(kept.values()), [query for query, _ in tasks[::COUNTED]]))
    shares = ", ".join(f"{count / len(tasks):.1%} among the first {first}" for first, count in found.items())
    p99 = statistics.quantiles(took_ms, n=100)[-1]
    sys.stdout.write(f"{len(kept)} tools, {len(tasks)} tasks: the tools of {shares}\n")
    sys.stdout.write(f"a search takes {statistics.median(took_ms):.2f} ms, p99 {p99:.2f}; the index {built_s:.2f} s\n")


def _type_of(match: re.Match[str]) -> str:
    return f'"type": "{TYPES[match[1]]}"'


def hash_of(name: str) -> int:
    """Return a number that orders names in the same way everywhere, and not by their letters."""
    return int.from_bytes(name.encode()[::-1], "big") * 2654435761 % 2**32


def _measure(index: ToolIndex, tasks: list[tuple[str, set[str]]]) -> tuple[dict[int, int], list[float]]:
    found, took_ms = dict.fromkeys(FIRST, 0), []
    for query, wanted in tasks:
        names: list[str] = []
        for _ in range(TURNS):
            started_s = time.perf_counter()
            names = [name for name, _ in index.search(query, lambda _: True, FIRST[-1])]
            took_ms.append((time.perf_counter() - started_s) * 1000)
        for first in FIRST:
            found[first] += wanted <= set(names[:first])
    return found, took_ms


async def _count_tokens(address: str, index: ToolIndex, tools: list[ToolDefinition], queries: list[str]) -> None:
    max_bytes = OrchestratorSettings.model_fields["max_offered_tool_bytes"].default
    counts, offered = [], []
    async with grpc.aio.insecure_channel(address) as channel:
        count = inference_service_pb2_grpc.InferenceServiceStub(channel).CountTokens
        for query in queries:
            names = [name for name, _ in index.search(query, lambda _: True, MAX_SEARCHED)]
            chosen = select(tools, names, max_bytes)
            alone = generation_pb2.ChatPrompt(messages=[message_to_proto(Message(Role.USER, content=query))])
            chat = generation_pb2.ChatPrompt(
                messages=alone.messages,
                tools=map(tool_definition_to_proto, chosen),
                # A model whose template has no tools sees them where it must call one.
                tool_choice=tool_choice_to_proto(ToolChoice(ToolChoiceMode.REQUIRED)),
            )
            with_tools = await count(inference_service_pb2.CountTokensRequest(chat=chat))
            without = await count(inference_service_pb2.CountTokensRequest(chat=alone))
            counts.append(with_tools.chat_tokens - without.chat_tokens)
            offered.append(len(chosen))
    sys.stdout.write(
        f"{len(queries)} requests are offered {statistics.median(offered):g} tools, at most {max(offered)}, which take "
        f"{statistics.median(counts):g} tokens, at most {max(counts)}\n"
    )


def _entries() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, PACKAGE]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for category in CATEGORIES:
                name = f"BFCL_v4_{category}.json"
                entries = archive.read(f"bfcl_eval/data/{name}").decode().splitlines()
                answers = archive.read(f"bfcl_eval/data/possible_answer/{name}").decode().splitlines()
                by_id = {answer["id"]: answer for answer in map(json.loads, answers)}
                for entry in map(json.loads, entries):
                    yield entry, by_id[entry["id"]]


if __name__ == "__main__":
    main()
