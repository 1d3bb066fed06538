"""Measures of the source: length, branching, hops between modules and functions. Read from the syntax alone."""

import ast
import io
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.support.pages import is_ours

ROOT = Path(__file__).parents[2]
PACKAGES = ("pagantic_common", "services", "gateway", "deploy")
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension, ast.Assert)
NESTING = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.With, ast.AsyncWith, ast.Match)
SMALL_FUNCTION = 5
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Function:
    """A function: where it is, its lines, and its cyclomatic complexity with conditions and match cases counted."""

    name: str
    lines: int
    complexity: int
    nesting: int


@dataclass(frozen=True)
class Module:
    """A module; `imports` are modules of ours, `small_private` private functions of at most 5 lines with one use."""

    name: str
    lines: int
    comments: int
    functions: tuple[Function, ...]
    imports: frozenset[str]
    small_private: int


def read_modules(root=ROOT):
    """Return every module of the packages; migrations, which are history, and generated code are left out."""
    paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    paths = [path for path in paths if "migrations" not in path.parts and is_ours(path)]
    names = {module_name(path, root) for path in paths}
    return [read_module(path, root, names) for path in paths]


def module_name(path, root):
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_module(path, root, names):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    name = module_name(path, root)
    functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    return Module(
        name=name,
        lines=len(text.splitlines()),
        functions=tuple(_function(name, node) for node in functions),
        imports=frozenset(_imports(tree, names) - {name}),
        comments=sum(token.type == tokenize.COMMENT for token in tokenize.generate_tokens(io.StringIO(text).readline)),
        small_private=_small_private(tree, functions),
    )


def room_of(name):
    """Return the folder that holds a module."""
    return name.rpartition(".")[0]


def rooms(modules):
    """Return how many modules each folder holds, without those of its subfolders."""
    counts = {}
    for module in modules:
        room = room_of(module.name)
        counts[room] = counts.get(room, 0) + 1
    return counts


def importers(modules):
    """Return the modules of ours that import each module."""
    found = {module.name: set() for module in modules}
    for module in modules:
        for name in module.imports:
            found[name].add(module.name)
    return found


def _small_private(tree, functions):
    """Count private functions of at most 5 lines that the module names once: a reader jumps there for little."""
    uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    uses.update(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return sum(
        node.name.startswith("_") and not node.name.startswith("__") and uses[node.name] == 1
        for node in functions
        if node.end_lineno - node.lineno + 1 <= SMALL_FUNCTION
    )


def _function(module, node):
    own = list(_own_nodes(node))
    complexity = 1 + sum(isinstance(one, BRANCHES) for one in own)
    complexity += sum(len(one.values) - 1 for one in own if isinstance(one, ast.BoolOp))
    complexity += sum(len(one.cases) for one in own if isinstance(one, ast.Match))
    complexity += sum(len(one.ifs) for one in own if isinstance(one, ast.comprehension))
    return Function(f"{module}.{node.name}", node.end_lineno - node.lineno + 1, complexity, _nesting(node))


def _own_nodes(function):
    """Walk a function without the functions inside of it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, FUNCTIONS):
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node))


def _nesting(node):
    depth = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTIONS):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        depth = max(depth, _nesting(child) + (isinstance(child, NESTING) and not is_elif))
    return depth


def _imports(tree, names):
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & names
            found |= submodules or {node.module}
    return found & names
