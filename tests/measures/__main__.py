"""`python -m tests.measures`: prints measures of the source, the worst first, and holds its limits."""

import statistics
import sys

from tests.measures.source import read_modules, room_of, rooms

MAX_COMPLEXITY = 10
MAX_NESTING = 3
MAX_IMPORTS = 12
MAX_ROOMS = 10
MAX_ROOM = 13
SHOWN = 12
APP = "services.orchestrator.app."
MEETS_ALL = "it is where the machine's commands, inputs and events meet the services"
# Modules that import more than MAX_IMPORTS of ours, each with its reason.
MAY_IMPORT_MORE = {
    "services.orchestrator.__main__": "it names every concrete class of the service",
    "services.orchestrator.wiring.access": "it names the classes that let callers in",
    "services.orchestrator.wiring.services": "it names the classes of every called service",
    "services.inference.app.prepared_request": "all parts of a request that is ready to decode",
    "services.inference.vllm.servicer": "every rpc of the other protocol, and its registration",
    "services.inference.wiring.model_loading": "it names the classes of every kind of model",
    "services.inference.wiring.own_model": "it names the classes that load and tune a model",
    "services.inference.wiring.server": "it names the servicers and the metrics",
    "services.inference.wiring.service": "it composes the service",
    "services.inference.wiring.text_generation": "it names every class of a model that generates text",
    "deploy.local.host": "it opens all services in one process",
    "gateway.cli.main": "it names every command",
    "services.orchestrator.servicer": "every rpc, each with its converter",
    "services.tools.__main__": "it names every concrete class of the service",
    "services.tools.servicer": "every rpc, each with its converter",
    "services.orchestrator.adapters.journal.stores.executions": "all that is stored of an execution, and read again",
    "services.orchestrator.adapters.journal.sql_journal": "it joins a class for each port",
    "services.orchestrator.adapters.journal.writes": "all that is stored of an execution",
    f"{APP}create_plan": "a use-case of its own: it checks, asks, counts and accepts a plan",
    f"{APP}executions": "the use-cases of the servicer",
    f"{APP}recording.recorder": "it makes the envelope of every event, and its journal's write",
    f"{APP}history": "the use-cases of the servicer that read",
    f"{APP}effects.driving": MEETS_ALL,
    f"{APP}effects.scope": "what all effects of a machine share",
    f"{APP}running.admission": "it decides what becomes of a request: every kind of execution",
    f"{APP}running.driver": MEETS_ALL,
    f"{APP}running.execution": "the scopes that an execution runs in: trace, deadline, correlation, time limit",
    f"{APP}effects.inference.inferring": MEETS_ALL,
    f"{APP}effects.guarding.answering": MEETS_ALL,
    f"{APP}effects.guarding.judging": MEETS_ALL,
    f"{APP}effects.guarding.looking": MEETS_ALL,
    f"{APP}effects.tools.calling": MEETS_ALL,
    f"{APP}effects.planning": MEETS_ALL,
    f"{APP}effects.preparing": MEETS_ALL,
    f"{APP}effects.remembering": MEETS_ALL,
    f"{APP}effects.retrieval.query_writing": MEETS_ALL,
    f"{APP}effects.retrieval.retrieving": MEETS_ALL,
    f"{APP}effects.inference.sampling": MEETS_ALL,
    f"{APP}effects.plan_steps.attempts": MEETS_ALL,
    f"{APP}effects.plan_steps.infer": MEETS_ALL,
    f"{APP}effects.plan_steps.kinds": "every kind of step",
}


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rooms_of(module):
    """Return the other rooms that a module imports from."""
    return {room_of(name) for name in module.imports} - {room_of(module.name)}


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
        ("rooms that a module imports from", [len(rooms_of(module)) for module in modules]),
    ):
        yield f"{name}: median {statistics.median(values):g}, p90 {quantile(values, 0.9)}, most {max(values)}"
    yield f"functions over complexity {MAX_COMPLEXITY}: {len(branched)}, {100 * len(branched) / len(functions):.1f} %"
    yield f"conditional expressions per 1000 lines: {1000 * sum(one.conditionals for one in modules) / total:.1f}"
    yield "most branched: " + ", ".join(f"{one.name} {one.complexity}" for one in branched[:SHOWN])
    most = sorted(fan_outs.items(), key=lambda one: -one[1])[:SHOWN]
    yield "most imports: " + ", ".join(f"{name} {count}" for name, count in most)
    yield "fullest rooms: " + ", ".join(f"{name} {count}" for name, count in full[:SHOWN])


def breaches_of(modules):
    """Yield what is over a limit; a limit is met by splitting along ideas, never by folding lines."""
    for module in modules:
        for function in module.functions:
            if function.complexity > MAX_COMPLEXITY:
                yield f"{function.name} has complexity {function.complexity}, at most {MAX_COMPLEXITY}"
            if function.nesting > MAX_NESTING:
                yield f"{function.name} nests {function.nesting} deep, at most {MAX_NESTING}"
        if len(module.imports) > MAX_IMPORTS and module.name not in MAY_IMPORT_MORE:
            yield f"{module.name} imports {len(module.imports)} of our modules, at most {MAX_IMPORTS}"
        if len(rooms_of(module)) > MAX_ROOMS:
            yield f"{module.name} imports from {len(rooms_of(module))} rooms, at most {MAX_ROOMS}"
    for room, count in rooms(modules).items():
        if count > MAX_ROOM:
            yield f"{room} holds {count} modules, at most {MAX_ROOM}"


def main():
    modules = read_modules()
    for line in lines_of(modules):
        sys.stdout.write(line + "\n")
    breaches = list(breaches_of(modules))
    for breach in breaches:
        sys.stderr.write(f"limit: {breach}\n")
    return len(breaches) > 0


if __name__ == "__main__":
    sys.exit(main())
