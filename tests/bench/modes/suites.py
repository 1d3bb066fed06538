"""The suites that are sent: the same samples in each arm, so that `pagantic eval` scores them and pairs them by name.

A suite has a block of samples in all arms, one arm after the other, so that what else the machine does meets every arm.
Each block begins with another arm, because an arm may find in the cache what the one before it has computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.bench.modes.tasks import Sample, Task

BLOCK = 10
SCHEMA_TOKENS = 200  # An answer with a schema may have so many.
RETRIES = 2
RULE = "holds"
SCORE = "right"
VOTES = (1, 3, 5, 9)
CHAT, HIDDEN, SHOWN, RULES = "chat", "structured", "structured-shown", "rules"
ARMS = (CHAT, HIDDEN, SHOWN, *(f"votes-{n}" for n in VOTES), RULES)
TITLES = {
    CHAT: "CHAT",
    HIDDEN: "STRUCTURED without the schema",
    SHOWN: "STRUCTURED with the schema",
    **{f"votes-{n}": f"REDUNDANT, votes: {n}" for n in VOTES},
    RULES: "with the schema and rules",
}
MEASURES: tuple[Any, ...] = ("latency", "tokens", {"cost": {"prompt": 1, "output": 4}})
_SEEDS_APART = 1000


def suite_of(name: str, task: Task, samples: Sequence[Sample], block: int) -> dict[str, Any]:
    """Return the suite of a block, from 0, as pagantic eval reads it."""
    first = block * BLOCK
    numbered = list(enumerate(samples[first : first + BLOCK], first + 1))
    turn = block % len(ARMS)
    cases = [
        {
            "name": f"{arm}.{number:04d}",
            "input": sample.input,
            "expected": sample.expected,
            "tags": [arm],
            "request": request_of(task, sample, arm),
            "scorers": [_scorer_of(task, arm)],
        }
        for arm in (*ARMS[turn:], *ARMS[:turn])
        for number, sample in numbered
    ]
    return {"name": name, "scorers": list(MEASURES), "cases": cases}


def request_of(task: Task, sample: Sample, arm: str) -> dict[str, Any]:
    """Return the fields of SystemRequest for a sample in an arm."""
    if arm == CHAT:
        hints = {"max_tokens": task.chat_tokens, "temperature": 0, "tool_choice": {"mode": "TOOL_CHOICE_MODE_NONE"}}
        return {"mode": "chat", "system": f"{task.instructions} {task.chat_ending}", "hints": hints}
    request: dict[str, Any] = {
        "mode": "structured",
        "system": task.instructions,
        "schema": task.schema,
        "output": {"schema_in_prompt": "SCHEMA_IN_PROMPT_ON"},
        "hints": {"max_tokens": SCHEMA_TOKENS, "temperature": 0},
    }
    return request | _changes_of(sample, arm)


def _changes_of(sample: Sample, arm: str) -> Mapping[str, Any]:
    """Return what an arm changes in the request of STRUCTURED with the schema in the prompt."""
    if arm == HIDDEN:
        return {"output": {"schema_in_prompt": "SCHEMA_IN_PROMPT_OFF"}}
    if arm == RULES:
        return {"rules": [{"name": RULE, "expression": sample.rule}], "retry": {"max_retries": RETRIES}}
    if arm == SHOWN:
        return {}
    n = int(arm.removeprefix("votes-"))
    voting = {"n": n, "strategy": "VOTING_STRATEGY_FIELD_MAJORITY"}
    # Seeds far from each other: no arm draws the numbers of another one.
    return {"mode": "redundant", "voting": voting, "hints": {"max_tokens": SCHEMA_TOKENS, "seed": _SEEDS_APART * n}}


def _scorer_of(task: Task, arm: str) -> dict[str, Any]:
    scorer = {**task.scorer, "name": SCORE}
    if arm != CHAT:
        scorer["pointer"] = task.pointer
    return scorer
