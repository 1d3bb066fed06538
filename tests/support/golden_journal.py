"""`python -m tests.support.golden_journal VERSION`: stores what this version writes into journals, for tests to come.

Run once for a release. Entries of every kind with values in every field, and whole executions of every mode with the
transitions that they went through.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from random import Random
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from services.orchestrator.adapters.journal.writes import KINDS, entry_to_json
from services.orchestrator.core.execution.replay import replay

FOLDER = Path(__file__).parents[1] / "golden"
EXAMPLES = 6
PLAIN = {
    str: lambda random: random.choice(["", "word", 'é"\n😀', "two words"]),
    int: lambda random: random.randrange(1, 2**31),
    float: lambda random: random.choice([0.0, 0.25, 1.5, 1e9]),
    bool: lambda random: random.random() < 0.5,
    type(None): lambda _: None,
    datetime: lambda random: datetime.fromtimestamp(random.randrange(10**9), UTC),
    Any: lambda random: random.choice([1, "text", [True, None]]),
}


def value_of(hint, random, outer=frozenset()):  # noqa: PLR0911 - an arm for each kind of annotation
    """Draw a value of an annotation; what a class has of its own kind is empty."""
    origin, arguments = get_origin(hint), get_args(hint)
    count = 0 if arguments and arguments[0] in outer else random.randrange(3)
    if hint in PLAIN:
        return PLAIN[hint](random)
    if origin in (Union, UnionType):
        return value_of(random.choice(arguments), random, outer)
    if origin is tuple and arguments[-1] is not ...:
        return tuple(value_of(one, random, outer) for one in arguments)
    if origin in (tuple, frozenset):
        return origin(value_of(arguments[0], random, outer) for _ in range(count))
    if origin in (Mapping, dict):
        return {value_of(arguments[0], random, outer): value_of(arguments[1], random, outer) for _ in range(count)}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return random.choice(list(hint))
    hints = get_type_hints(hint)
    return hint(**{one.name: value_of(hints[one.name], random, outer | {hint}) for one in dataclasses.fields(hint)})


def examples_of(kind):
    """Return entries of a kind as they are stored."""
    random = Random(1)  # noqa: S311 - the same whenever it is made
    return [json.loads(entry_to_json(value_of(kind, random))) for _ in range(EXAMPLES)]


def transitions_of(entries):
    """Return how entries lead through the lifecycle, as text."""
    return [f"{one.source} {one.target} {one.attempt}" for one in replay(entries).transitions]


def main():
    from tests.unit.orchestrator.test_golden_journal import executions  # noqa: PLC0415 - only where a release is made

    (version,) = sys.argv[1:]
    golden = {
        "entries": {name: examples_of(kind) for name, kind in KINDS.items()},
        "executions": {
            name: {
                "entries": [json.loads(entry_to_json(entry)) for entry in entries],
                "transitions": transitions_of(entries),
            }
            for name, entries in executions().items()
        },
    }
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(golden, separators=(",", ":")).replace('],["', '],\n["')
    (FOLDER / f"journal-{version}.json").write_text(text + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
