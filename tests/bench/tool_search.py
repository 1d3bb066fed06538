"""How often the right tool is among the first of a thousand: `python -m tests.bench.tool_search`.

Tools and tasks are those of the Berkeley Function Calling Leaderboard. A task with several tools counts when all are
found. `--inference ADDRESS` also counts the tokens that the tools take in a prompt of that service's default model,
which a model is offered under the default settings. Compiling the schemas of what is offered is compared with compiling
that of the first tool alone.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence

import grpc

from pagantic.inference.v1 import generation_pb2, inference_service_pb2, inference_service_pb2_grpc
from pagantic_common.codec.messages import message_to_proto, tool_choice_to_proto, tool_definition_to_proto
from pagantic_common.domain.messages import Message, Role, ToolChoice, ToolChoiceMode, ToolDefinition
from pagantic_common.grammar.engine_text import byte_tokenizer, engine_text_of_schema, start_matcher
from pagantic_common.grammar.problems import GrammarError
from services.inference.core.prompts import call_schema
from services.orchestrator.core.tools.policy import MAX_SEARCHED, select
from services.orchestrator.settings import OrchestratorSettings
from services.tools.core.tool_search import ToolIndex
from tests.bench.leaderboard import Task, read_tasks

TOOL_COUNT = 1000
FIRST = (1, 3, 5, 10)
TURNS = 3
COUNTED = 20  # tokens are counted for one task in this many


def main() -> None:
    """Print how often the tools of a task are found, and how long a search takes."""
    tasks = list(read_tasks())
    tools = {tool.name: tool for task in tasks for tool in task.tools}
    kept = dict(sorted(tools.items(), key=lambda one: hash_of(one[0]))[:TOOL_COUNT])
    tasks = [task for task in tasks if task.solution <= kept.keys()]
    started_s = time.perf_counter()
    index = ToolIndex(list(kept.values()))
    built_s = time.perf_counter() - started_s
    found, took_ms = _measure(index, tasks)
    if len(sys.argv) > 2 and sys.argv[1] == "--inference":
        asyncio.run(_count_tokens(sys.argv[2], index, list(kept.values()), [task.words for task in tasks[::COUNTED]]))
    shares = ", ".join(f"{count / len(tasks):.1%} among the first {first}" for first, count in found.items())
    p99 = statistics.quantiles(took_ms, n=100)[-1]
    sys.stdout.write(f"{len(kept)} tools, {len(tasks)} tasks: the tools of {shares}\n")
    together, alone = _compile(index, list(kept.values()), [task.words for task in tasks[::COUNTED]])
    sys.stdout.write(
        f"compiling what is offered takes {_median_and_most(together)}, one tool {_median_and_most(alone)}\n"
    )
    sys.stdout.write(f"a search takes {statistics.median(took_ms):.2f} ms, p99 {p99:.2f}; the index {built_s:.2f} s\n")


def hash_of(name: str) -> int:
    """Return a number that orders names in the same way everywhere, and not by their letters."""
    return int.from_bytes(name.encode()[::-1], "big") * 2654435761 % 2**32


def _measure(index: ToolIndex, tasks: list[Task]) -> tuple[dict[int, int], list[float]]:
    found, took_ms = dict.fromkeys(FIRST, 0), []
    for task in tasks:
        names: list[str] = []
        for _ in range(TURNS):
            started_s = time.perf_counter()
            names = [name for name, _ in index.search(task.words, lambda _: True, FIRST[-1])]
            took_ms.append((time.perf_counter() - started_s) * 1000)
        for first in FIRST:
            found[first] += task.solution <= set(names[:first])
    return found, took_ms


def _compile(index: ToolIndex, tools: list[ToolDefinition], queries: list[str]) -> tuple[list[float], list[float]]:
    """Return how long constraints take up to their first mask, ms: of the tools that are offered, and of the best."""
    together, alone = [], []
    max_bytes = OrchestratorSettings.model_fields["max_offered_tool_bytes"].default
    for query in queries:
        names = [name for name, _ in index.search(query, lambda _: True, MAX_SEARCHED)]
        chosen = select(tools, names, max_bytes)
        try:
            both = [_compile_ms(chosen), _compile_ms(chosen[:1])]
        except GrammarError:  # the leaderboard has types that JSON Schema has not
            continue
        together.append(both[0])
        alone.append(both[1])
    return together, alone


def _compile_ms(tools: Sequence[ToolDefinition]) -> float:
    started_s = time.perf_counter()
    start_matcher(engine_text_of_schema(call_schema(tools)), byte_tokenizer()).compute_bitmask()
    return (time.perf_counter() - started_s) * 1000


def _median_and_most(took_ms: list[float]) -> str:
    return f"{statistics.median(took_ms):.1f} ms, at most {max(took_ms):.1f}"


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


if __name__ == "__main__":
    main()
