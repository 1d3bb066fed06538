"""The commands and examples of the pages can be pasted, in their order."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from types import SimpleNamespace

import pytest

from gateway.cli import failures
from pagantic_common.domain.errors import ErrorCode
from pagantic_common.tools import ToolContext, ToolDenied, ToolNotRun
from services.tools.adapters.loading import load_hooks, load_tools
from tests.e2e.conftest import ROOT
from tests.support.gateway_process import serving_gateway

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND_LINE = (ROOT / "deploy" / "docs" / "command-line.md").read_text(encoding="utf-8")
TOOLS = (ROOT / "deploy" / "docs" / "tools.md").read_text(encoding="utf-8")
APPROVALS = (ROOT / "deploy" / "docs" / "approvals.md").read_text(encoding="utf-8")
ERRORS = (ROOT / "deploy" / "docs" / "errors.md").read_text(encoding="utf-8")


def commands():
    """The commands of the first block of examples, but for those that start, stop or converse."""
    (block,) = re.findall(r"```\n(source \.venv/bin/activate\n.*?)```", COMMAND_LINE, flags=re.DOTALL)
    lines = [shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines()[1:]]
    assert all(line[0] == "pagantic" for line in lines)
    return [line for line in lines if line[1:] not in (["up"], ["down"], ["chat"])]


@pytest.mark.whole
def test_the_commands_work_in_their_order(system, monkeypatch):
    monkeypatch.setitem(system.environment, "COLUMNS", "80")
    shown = [system.run(*command) for command in commands()]
    assert len(shown) > 9
    assert "-> 391" in shown[1].stderr
    assert "391" in shown[1].stdout


def test_the_python_example_reads_its_text(system):
    code, *_ = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert system.run(sys.executable, "-c", code).stdout == "Ana 34\n"


def test_the_example_for_openais_package_streams(system):
    _, code, _ = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    with serving_gateway(system.environment) as url:
        assert len(system.run(sys.executable, "-c", code.replace("http://127.0.0.1:8080/v1", url)).stdout) > 20


def test_the_tool_of_the_readme_is_one(tmp_path):
    *_, code = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "stock.py").write_text(code)
    (loaded,) = load_tools([str(tmp_path / "stock.py")], is_installed_included=False)
    assert loaded.definition.name == "stock"
    assert asyncio.run(loaded.run({"article": "lamp"}, print)) == "12"


def test_the_example_of_a_tool_that_knows_its_effects_is_one():
    _, code, *_ = re.findall(r"```python\n(.*?)```", TOOLS, flags=re.DOTALL)
    transfers = {}

    class Bank:
        def transfer(self, euros, reference):
            return transfers.setdefault(reference, SimpleNamespace(id=f"t{euros}")).id

        def find(self, reference):
            return transfers.get(reference)

    names = {"bank": Bank()}
    exec(code, names)  # noqa: S102 - the page's own
    pay = names["pay"]
    with pytest.raises(ToolNotRun):
        pay.outcome_function("e1")
    assert pay(3, ToolContext(effect_id="e1")) == pay.outcome_function("e1") == "t3"


def test_the_example_of_a_callers_tool_runs(system):
    *_, code, _ = re.findall(r"```python\n(.*?)```", TOOLS, flags=re.DOTALL)
    assert system.run(sys.executable, "-c", code).stdout.strip()


def test_the_example_of_a_hook_is_one(tmp_path):
    *_, code = re.findall(r"```python\n(.*?)```", TOOLS, flags=re.DOTALL)
    (tmp_path / "guards.py").write_text(code)
    (hook,) = load_hooks([f"{tmp_path / 'guards.py'}:Guards"])
    assert hook.before("search", {"q": 1}) == {"q": 1, "user": "bot"}
    assert hook.after("search", {}, "it is hunter2") == "it is [secret]"
    with pytest.raises(ToolDenied):
        hook.before("read_file", {"path": "a.pem"})


def test_the_example_of_approvals_runs(system):
    (code,) = re.findall(r"```python\n(.*?)```", APPROVALS, flags=re.DOTALL)
    assert system.run(sys.executable, "-c", code).stdout == "", "no call waits"


def test_the_request_of_the_readme_gets_an_answer(system):
    (call,) = re.findall(r"^(grpcurl -plaintext -d .*?)\n```", README, flags=re.DOTALL | re.MULTILINE)
    command = shlex.split(call)
    shown = system.run(*[part.replace("localhost:50051", system.address("orchestrator")) for part in command]).stdout
    answer = json.loads(json.loads(shown)["structuredOutputJson"])
    assert answer["color"] in {"red", "green", "blue"}


def test_the_table_of_codes_names_every_code_in_full():
    assert all(re.search(rf"\b{code.value}\b", ERRORS) for code in ErrorCode)


def test_the_table_of_exit_codes_is_whole():
    exit_codes = {
        value for name, value in vars(failures).items() if name.startswith("EXIT_") and isinstance(value, int)
    }
    assert exit_codes <= {int(code) for code in re.findall(r"^\| (\d+) \|", COMMAND_LINE, flags=re.MULTILINE)}
