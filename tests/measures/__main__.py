"""`python -m tests.measures`: prints measures of the source, worst first where there is a worst."""

import statistics
import sys

from tests.measures.source import read_modules, rooms

MAX_COMPLEXITY = 10
SHOWN = 12


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def lines_of(modules):
    functions = [function for module in modules for function in module.functions]
    total = sum(module.lines for module in modules)
    branched = sorted((one for one in functions if one.complexity > MAX_COMPLEXITY), key=lambda one: -one.complexity)
    fan_outs = {module.name: len(module.imports) for module in modules}
    full = sorted(rooms(modules).items(), key=lambda room: -room[1])
    yield f"{len(modules)} modules, {total} lines, {len(functions)} functions"
    for name, values in (
        ("lines of a module", [module.lines for module in modules]),
        ("lines of a function", [one.lines for one in functions]),
        ("complexity of a function", [one.complexity for one in functions]),
        ("nesting of a function", [one.nesting for one in functions]),
        ("modules of ours that a module imports", list(fan_outs.values())),
    ):
        yield f"{name}: median {statistics.median(values):g}, p90 {quantile(values, 0.9)}, most {max(values)}"
    yield f"functions over complexity {MAX_COMPLEXITY}: {len(branched)}, {100 * len(branched) / len(functions):.1f} %"
    yield f"conditional expressions per 1000 lines: {1000 * sum(one.conditionals for one in modules) / total:.1f}"
    yield "most branched: " + ", ".join(f"{one.name} {one.complexity}" for one in branched[:SHOWN])
    most = sorted(fan_outs.items(), key=lambda one: -one[1])[:SHOWN]
    yield "most imports: " + ", ".join(f"{name} {count}" for name, count in most)
    yield "fullest rooms: " + ", ".join(f"{name} {count}" for name, count in full[:SHOWN])


def main():
    for line in lines_of(read_modules()):
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
