"""The steps of the pages about additions, followed on a copy of the product: new files, changes, tests."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.measures.__main__ import MAX_LINES, breaches_of
from tests.measures.source import FUNCTIONS, module_name, read_module
from tests.support.pages import ROOT, blocks

FOLDERS = (
    *("services", "gateway", "pagantic_common", "deploy/docs", "proto/gen", "tests/support", "tests/contract"),
    *("tests/integration", "tests/unit/tools"),
)
FILES = ("pyproject.toml", "tests/conftest.py")
PAGES = sorted((ROOT / "deploy" / "docs").glob("adding-*.md"))
SQL = re.compile(r"\w\._[a-z]|\b(opened|create_engine|text)\(")
NEW_FILE = re.compile(r"# (\w[\w/]*\.py)\n(.*)", re.DOTALL)


@pytest.fixture
def product(tmp_path):
    """A copy of the product and of the tests that the pages use, with its compiled modules."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in FILES:
        shutil.copy2(ROOT / file, tmp_path / file)
    return tmp_path


def run(folder, *command, **options):
    """Run a command in a folder; `git apply` must find no repository around it."""
    surroundings = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'proto' / 'gen'}",
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }
    done = subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def make_files(page, folder):
    """Write the new files of a page; return their paths."""
    files = [made for block in blocks(page, "python") if (made := NEW_FILE.fullmatch(block))]
    for made in files:
        path = folder / made[1]
        assert not path.exists(), f"{made[1]} is there already"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made[2], encoding="utf-8")
    return [made[1] for made in files]


def change_files(page, folder):
    """Apply the changes of a page, wherever their lines are by now; return the paths of the changed files."""
    changes = [part for block in blocks(page, "diff") for part in re.split(r"^(?=--- a/)", block, flags=re.MULTILINE)]
    for change in filter(None, changes):
        run(folder, "git", "apply", input=change)
    return re.findall(r"^\+\+\+ b/(\S+)$", "".join(changes), flags=re.MULTILINE)


def breaches(product, files):
    """Return the breaches of the limits of `tests.measures` in the source files of a page."""
    paths = [product / name for name in files if not name.startswith("tests/")]
    modules = [read_module(path, product, {module_name(path, product)}) for path in paths]
    lengths = {name: len((product / name).read_text(encoding="utf-8").splitlines()) for name in files}
    return [*breaches_of(modules), *(name for name, lines in lengths.items() if lines > MAX_LINES)]


def unmarked_tests(path):
    """Yield the tests of any store's journal that use its tables or its parts, and lack the marker `sql_only`."""
    functions = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, FUNCTIONS)]
    own = {node.name for node in functions}
    # A file with databases of its own gets no other store.
    fixtures = set() if "database_url" in own else {"journal", "journals"} - own
    for node in functions:
        takes_journal = fixtures & {argument.arg for argument in node.args.args}
        is_exempt = re.search("sql_only|postgresql", " ".join(map(ast.unparse, node.decorator_list)))
        if node.name.startswith("test_") and takes_journal and not is_exempt and SQL.search(ast.unparse(node)):
            yield node.name


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "contract").glob("test_*.py")), ids=lambda path: path.stem)
def test_contract_tests_about_sql_are_skipped_for_other_stores(path):
    assert list(unmarked_tests(path)) == []


def test_there_is_a_page_for_each_kind_of_addition():
    assert [page.stem for page in PAGES] == [
        f"adding-a-{kind}" for kind in ("command", "dialect", "provider", "step-kind", "store", "tool")
    ]


SLOW = {"adding-a-provider"}


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.whole) if path.stem in SLOW else path for path in PAGES],
    ids=lambda path: path.stem,
)
def test_whoever_follows_the_page_has_an_addition_that_works(product, path):
    page = path.read_text(encoding="utf-8")
    written = [*make_files(page, product), *change_files(page, product)]
    sources = [name for name in written if name.endswith(".py")]
    assert breaches(product, sources) == []
    run(product, sys.executable, "-m", "ruff", "check", "--no-cache", *sources)
    run(product, sys.executable, "-m", "ruff", "format", "--no-cache", "--check", *sources)
    python, *command = shlex.split(blocks(page, "sh")[-1])
    assert python == "python"
    assert command[:2] == ["-m", "pytest"]
    options = ("-p", "no:cacheprovider", f"--basetemp={product / 'tmp'}")
    summary = run(product, sys.executable, *command, *options).splitlines()[-1]
    assert "passed" in summary
    assert "skipped" not in summary
