"""`python -m tests.measures`: print measures of the source, the worst first, and hold its limits."""

import re
import statistics
import sys
from pathlib import Path

from tests.measures.source import ROOT, importers, read_modules, room_of
from tests.support.pages import is_ours

MAX_COMPLEXITY = 10
MAX_NESTING = 3
MAX_FUNCTION = 80
MAX_LINES = 800
# A module that belongs to its only importer, unless it is an adapter, a port or a plug-in: a reader jumps for little.
SMALL_MODULE = 60
MAX_SMALL_MODULES = 51
MAX_RECORD = 40
SHOWN = 12


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def small_modules_of(modules):
    """Return the names of small modules with one importer."""
    by = importers(modules)
    return sorted(module.name for module in modules if module.lines <= SMALL_MODULE and len(by[module.name]) == 1)


def lines_of(modules):
    functions = [function for module in modules for function in module.functions]
    total = sum(module.lines for module in modules)
    fan_outs = {module.name: len(module.imports) for module in modules}
    small = sum(module.small_private for module in modules)
    yield (
        f"{len(modules)} modules in {len({room_of(module.name) for module in modules})} folders, {total} lines, "
        f"{len(functions)} functions"
    )
    for name, values in (
        ("lines of a module", [module.lines for module in modules]),
        ("lines of a function", [function.lines for function in functions]),
        ("complexity of a function", [function.complexity for function in functions]),
        ("nesting of a function", [function.nesting for function in functions]),
        ("modules of ours that a module imports", list(fan_outs.values())),
    ):
        yield f"{name}: median {statistics.median(values):g}, p90 {quantile(values, 0.9)}, most {max(values)}"
    yield f"comments per 100 lines: {100 * sum(module.comments for module in modules) / total:.1f}"
    yield f"private functions of 5 lines or fewer with one use, per 1000 lines: {1000 * small / total:.1f}"
    yield f"modules of {SMALL_MODULE} lines or fewer with one importer: {len(small_modules_of(modules))}"
    longest = sorted(modules, key=lambda module: -module.lines)[:SHOWN]
    yield "longest: " + ", ".join(f"{module.name} {module.lines}" for module in longest)
    most = sorted(fan_outs.items(), key=lambda item: -item[1])[:SHOWN]
    yield "most imports: " + ", ".join(f"{name} {count}" for name, count in most)


def breaches_of(modules):
    """Yield each breach of a limit; a limit is met by rewriting along ideas, never by folding lines."""
    for module in modules:
        for function in module.functions:
            if function.complexity > MAX_COMPLEXITY:
                yield f"{function.name} has complexity {function.complexity}, at most {MAX_COMPLEXITY}"
            if function.nesting > MAX_NESTING:
                yield f"{function.name} nests {function.nesting} deep, at most {MAX_NESTING}"
            if function.lines > MAX_FUNCTION:
                yield f"{function.name} has {function.lines} lines, at most {MAX_FUNCTION}"
    small = small_modules_of(modules)
    if len(small) > MAX_SMALL_MODULES:
        yield (
            f"{len(small)} modules of at most {SMALL_MODULE} lines have one importer, at most {MAX_SMALL_MODULES}: "
            + ", ".join(small)
        )


def long_files():
    """Yield the source files over the limit of lines, tests included."""
    for folder in ("pagantic_common", "services", "gateway", "deploy", "tests"):
        for path in filter(is_ours, sorted((ROOT / folder).rglob("*.py"))):
            if (count := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES:
                yield f"{path.relative_to(ROOT)} has {count} lines, at most {MAX_LINES}"


def late_definitions():
    """Yield programs that define something after their start: it is missing when the program runs."""
    for folder in ("pagantic_common", "services", "gateway", "deploy", "tests"):
        for path in filter(is_ours, sorted((ROOT / folder).rglob("*.py"))):
            _, start, rest = path.read_text(encoding="utf-8").partition('\nif __name__ == "__main__":')
            if start and re.search(r"^(def|async def|class|@)", rest, re.MULTILINE):
                yield f"{path.relative_to(ROOT)} defines something after its start: move the start to the end"


def malformed_records(folder=Path(ROOT, "deploy", "decisions")):
    """Yield the faults of decision records: numbers without gaps, a title, three parts, a bounded length."""
    paths = sorted(path for path in folder.iterdir() if re.match(r"\d", path.name))
    for number, path in enumerate(paths, start=1):
        lines = path.read_text(encoding="utf-8").splitlines()
        parts = [line for line in lines if line.startswith("## ")]
        if not re.fullmatch(rf"{number:04}-[a-z0-9-]+\.md", path.name) or not lines[0].startswith(f"# {number:04} "):
            yield f"{path.name} must be record {number:04} by its name and its title"
        if len(lines) > MAX_RECORD or parts != ["## Context", "## Decision", "## Consequences"]:
            yield f"{path.name} must have Context, Decision and Consequences in at most {MAX_RECORD} lines"


def main():
    modules = read_modules()
    for line in lines_of(modules):
        sys.stdout.write(line + "\n")
    breaches = [*breaches_of(modules), *long_files(), *late_definitions(), *malformed_records()]
    for breach in breaches:
        sys.stderr.write(f"limit: {breach}\n")
    return len(breaches) > 0


if __name__ == "__main__":
    sys.exit(main())
