"""Tasks of the Berkeley Function Calling Leaderboard, whose package is fetched into a temporary folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagantic_common.domain.messages import ToolDefinition

PACKAGE = "bfcl-eval==2026.3.23"
CATEGORIES = ("simple_python", "multiple", "live_simple", "live_multiple", "parallel")
# The leaderboard's words for types.
TYPES = {"dict": "object", "float": "number", "tuple": "array"}


@dataclass(frozen=True, slots=True)
class Task:
    """The user's words, the tools that are offered, and the names of those that solve it."""

    words: str
    tools: tuple[ToolDefinition, ...]
    solution: frozenset[str]


def read_tasks() -> Iterator[Task]:
    """Yield every task."""
    for entry, answer in _entries():
        said = [message["content"] for turn in entry["question"] for message in turn if message["role"] == "user"]
        solution = frozenset(_name_of(name) for call in answer["ground_truth"] for name in call)
        yield Task(said[-1], tuple(map(_tool_of, entry["function"])), solution)


def _tool_of(function: dict[str, Any]) -> ToolDefinition:
    parameters = re.sub(r'"type": "(dict|float|tuple)"', _type_of, json.dumps(function["parameters"]))
    return ToolDefinition(_name_of(function["name"]), function["description"], parameters)


def _name_of(name: str) -> str:
    return name.replace(".", "_")


def _type_of(match: re.Match[str]) -> str:
    return f'"type": "{TYPES[match[1]]}"'


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
