"""How often JSON repair gives what other repairers' own tests expect: `python -m tests.bench.repair`.

The pairs of broken text and expected value are read from the test files of published packages, which are fetched into a
temporary folder: nothing of them is kept. Half of the pairs, chosen by a hash of their text, were looked at while
repair was made (`--show tuned`); the other half says how it does on what it was not made for.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.constraint.core.repair.json_repair import is_json, repair_json

# Sdists with tests that name input and expected value; the module of a language whose tests do so as well.
SDISTS = ("json-repair==0.30.0", "laga==0.1.6", "json-healer-lite==0.1.0", "jsonmend==0.1.4")
GO_MODULE = "github.com/kaptinlin/jsonrepair@v0.2.15"
REPAIRERS = frozenset({"repair_json", "repair", "repair_to_str", "heal_json", "loads"})
NOTHING = object()
_GO_STRING = r"(`[^`]*`|\"(?:[^\"\\\n]|\\.)*\")"
_GO_PAIR = re.compile(rf"assertRepair\(t, {_GO_STRING}, {_GO_STRING}\)")

Pair = tuple[str, Any]  # broken text, and the value expected: NOTHING where there is none


def fetch_sdist(requirement: str, folder: Path) -> Iterator[Path]:
    """Yield the test files of a source distribution."""
    target = folder / requirement.split("==", 1)[0]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "--no-build-isolation",
    ]
    if subprocess.run([*command, "-d", str(target), requirement], capture_output=True, check=False).returncode:
        sys.stdout.write(f"  {requirement}: cannot be fetched\n")
        return
    for archive in target.glob("*.tar.gz"):
        with tarfile.open(archive) as opened:
            opened.extractall(target, filter="data")
    yield from sorted(target.glob("*/tests/**/*.py"))


def fetch_go_module(folder: Path) -> Iterator[Path]:
    """Yield the test files of the Go module."""
    go = shutil.which("go")
    if go is None:
        sys.stdout.write(f"  {GO_MODULE}: needs go\n")
        return
    (folder / "go.mod").write_text("module pairs\n\ngo 1.20\n")
    done = subprocess.run(
        [go, "mod", "download", "-json", GO_MODULE], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.stdout.write(f"  {GO_MODULE}: cannot be fetched\n")
        return
    yield from Path(json.loads(done.stdout)["Dir"]).glob("*_test.go")


def go_pairs(path: Path) -> Iterator[Pair]:
    """Yield the pairs of a Go test file."""
    for match in _GO_PAIR.finditer(path.read_text()):
        try:
            text, expected = (
                part[1:-1] if part[0] == "`" else json.loads(part, strict=False) for part in match.groups()
            )
            yield text, json.loads(expected)
        except ValueError:  # an escape or a document that only Go reads
            continue


class PythonPairs(ast.NodeVisitor):
    """Finds pairs in a Python test file: compared calls, through variables, and tables of parameters."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []
        self.known: dict[str, ast.expr] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.known = {}
        for decorator in node.decorator_list:
            self.read_table(decorator)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self.known[node.targets[0].id] = self.resolved(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            self.add(test.left, test.comparators[0])

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "assertEqual":
            self.add(node.args[0], node.args[1])

    def resolved(self, node: ast.expr) -> ast.expr:
        """Follow a variable, and json.loads of what a repairer gave."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id, node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "json.loads" and node.args:
            return self.resolved(node.args[0])
        return node

    def add(self, call: ast.expr, expected: ast.expr) -> None:
        call, expected = self.resolved(call), self.resolved(expected)
        if not (isinstance(call, ast.Call) and call.args and all(option.arg in PLAIN for option in call.keywords)):
            return
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        text, value = _literal(self.resolved(call.args[0])), _literal(expected)
        if name in REPAIRERS and isinstance(text, str) and value is not NOTHING:
            is_text = isinstance(value, str) and not any(option.arg == "return_objects" for option in call.keywords)
            self.pairs.append((text, _value_of(value) if is_text else value))

    def read_table(self, node: ast.expr) -> None:
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("parametrize") and len(node.args) == 2):
            return
        names, rows = _literal(node.args[0]), _literal(node.args[1])
        names = names.replace(" ", "").split(",") if isinstance(names, str) else list(names)
        if names == ["text", "expected"] and isinstance(rows, list):
            self.pairs += [(text, expected) for text, expected in rows if isinstance(text, str)]


PLAIN = frozenset({"return_objects", "skip_json_loads", "ensure_ascii"})


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return NOTHING


def _value_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return NOTHING


def python_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a Python test file."""
    found = PythonPairs()
    found.visit(ast.parse(path.read_text()))
    # Their way to say that there is nothing is an empty string.
    return [(text, NOTHING if expected == "" else expected) for text, expected in found.pairs]


def collect(folder: Path) -> dict[str, list[Pair]]:
    """Return the pairs by source; valid JSON is no repair, and a text counts once."""
    sources = {name: [pair for path in fetch_sdist(name, folder) for pair in python_pairs(path)] for name in SDISTS}
    sources[GO_MODULE] = [pair for path in fetch_go_module(folder) for pair in go_pairs(path)]
    seen: set[str] = set()
    kept: dict[str, list[Pair]] = {}
    for name, pairs in sources.items():
        kept[name] = [pair for pair in pairs if not is_json(pair[0]) and not (pair[0] in seen or seen.add(pair[0]))]
    return kept


def is_held_out(text: str) -> bool:
    """Choose half of the texts, always the same."""
    return hashlib.sha256(text.encode(errors="replace")).digest()[0] % 2 == 1


def value_after_repair(text: str) -> Any:
    """Return the value that our repair gives the text."""
    result = repair_json(text)
    return json.loads(result.text) if result.valid else NOTHING


def why_not(text: str, expected: Any) -> str:
    """Say which of our rules stands against what is expected, if one does."""
    if repair_json(text).level == 1:
        return "read as cut off"
    if isinstance(expected, str) and not text.strip().startswith(tuple(QUOTES)):
        return "words are no JSON text"
    if _LEADING_ZERO.search(text):
        return "a number with leading zeros is a number"
    if expected is NOTHING or not evidence_of(text, expected):
        return "a value that the text lacks, or none that it has"
    return "other"


def evidence_of(text: str, value: Any) -> bool:
    """Whether every scalar stands in the text, in so many words."""
    if isinstance(value, dict):
        return all(evidence_of(text, part) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return all(evidence_of(text, item) for item in value)
    if value is None:
        return re.search("null|none|undefined|nan", text, re.IGNORECASE) is not None
    return isinstance(value, bool) or not isinstance(value, str) or not value or value in text


QUOTES = "\"'`\u2018\u201c\\"
_LEADING_ZERO = re.compile(r"(?<![\w.])0[0-9]")


def is_same(one: Any, other: Any) -> bool:
    """Compare as JSON does: true is not 1, 1.0 is 1."""
    if NOTHING in (one, other) or isinstance(one, bool) != isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


def main() -> None:
    """Fetch, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", choices=["tuned", "held-out"], help="list the disagreements of this half")
    shown = parser.parse_args().show
    counts = {"tuned": [0, 0], "held-out": [0, 0]}
    reasons: dict[str, Counter[str]] = {half: Counter() for half in counts}
    with tempfile.TemporaryDirectory() as folder:
        for name, pairs in collect(Path(folder)).items():
            agreed = 0
            for text, expected in pairs:
                half = "held-out" if is_held_out(text) else "tuned"
                given = value_after_repair(text)
                is_right = is_same(given, expected)
                agreed += is_right
                counts[half][0] += is_right
                counts[half][1] += 1
                if not is_right:
                    reasons[half][why_not(text, expected)] += 1
                if half == shown and not is_right:
                    sys.stdout.write(
                        f"    {text!r}\n      expected {_shown(expected)}\n      given    {_shown(given)}\n"
                    )
            sys.stdout.write(f"  {name}: {agreed} of {len(pairs)} agree\n")
    for half, (agreed, total) in counts.items():
        sys.stdout.write(f"{half}: {agreed} of {total} agree ({agreed / max(total, 1):.1%})\n")
        sys.stdout.writelines(f"  {count} disagree: {reason}\n" for reason, count in reasons[half].most_common())


def _shown(value: Any) -> str:
    return "nothing" if value is NOTHING else repr(value)


if __name__ == "__main__":
    main()
