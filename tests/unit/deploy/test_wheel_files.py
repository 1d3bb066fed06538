"""The files of the wheel: their imports lead into `pagantic`, and programs of our own are started in one way."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from hatch_build import MOVED, change_imports, moved_files
from tests.support.pages import ROOT

# A place that gives a module's name in a checkout to `run.command`, or looks for it among command lines.
NAMES_PROGRAMS = {"deploy/local/child.py", "deploy/local/supervision.py", "gateway/cli/serving/local.py"}
# Programs that see no module of ours, and what builds the engine for a checkout.
STARTS_PYTHON = {
    "deploy/local/engine_wheel.py",
    "pagantic_common/run.py",
    "services/tools/adapters/builtin/sandbox.py",
    "services/tools/adapters/mcp/server_process.py",
}
MODULE = re.compile(rf"({'|'.join(MOVED)})\.[a-z_.]*(:\w+)?")


@pytest.fixture(scope="module")
def modules():
    return {
        path: ast.parse(content, path)
        for path, content in moved_files(ROOT)
        if path.endswith(".py")  # the console has scripts too
    }


SOURCE = """from services.tools import ports
'\u2028'
def show():
    \'\'\'Show:
    from gateway import x
    \'\'\'
    from gateway.cli import main
"""


def test_an_import_is_changed_where_it_stands_and_a_text_is_not():
    changed = change_imports(SOURCE, "module.py").splitlines()
    assert changed[0] == "from pagantic.services.tools import ports"
    assert changed[-1] == "    from pagantic.gateway.cli import main"
    assert changed[1:-1] == SOURCE.splitlines()[1:-1]


@pytest.mark.parametrize("statement", ["import services.tools", "import json, deploy"])
def test_an_import_that_binds_the_folders_own_name_is_refused(statement):
    with pytest.raises(ValueError, match=r"module\.py:2: write `from package import module`"):
        change_imports(f"\n{statement}\n", "module.py")


def test_no_module_of_the_wheel_imports_the_folders_of_a_checkout(modules):
    imported = {
        name.name if isinstance(node, ast.Import) else str(node.module)
        for tree in modules.values()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in node.names
    }
    assert {name for name in imported if name.partition(".")[0] in MOVED} == set()
    assert "pagantic.services.tools.ports" in imported


def test_no_module_is_named_in_a_text_unless_it_is_run_as_a_program(modules):
    named = {
        path
        for path, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value)
    }
    assert named == NAMES_PROGRAMS


def test_programs_are_started_without_the_current_folder():
    sources = [file for folder in (*MOVED, "pagantic_common") for file in (ROOT / folder).rglob("*.py")]
    starting = {
        file.relative_to(ROOT).as_posix()
        for file in sources
        if "sys.executable" in file.read_text(encoding="utf-8") and "docs" not in file.parts
    }
    assert starting == STARTS_PYTHON


def test_what_is_for_readers_of_the_repository_stays_there():
    paths = {path for path, _ in moved_files(ROOT)}
    assert {path.partition("/")[0] for path in paths} == set(MOVED)
    assert {path.split("/")[1] for path in paths if path.startswith("deploy/")} == {"__init__.py", "local", "examples"}
    assert not {path for path in paths if Path(path).suffix in (".md", ".h", ".yaml", ".pyc")}
    assert {"services/orchestrator/adapters/guards/injection/weights.int8", "gateway/tui/app.tcss"} <= paths


def test_every_dependency_has_a_lower_bound_and_protobuf_two_majors():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = project["dependencies"] + [text for name, texts in extras.items() if name != "dev" for text in texts]
    unbound = [text for text in needed if not re.search(r"[>=]=\d", text.partition(";")[0])]
    assert unbound == []
    assert "protobuf>=6.33.5,<8" in needed
