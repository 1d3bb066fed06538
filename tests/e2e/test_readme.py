"""What README says can be pasted, in its order."""

from __future__ import annotations

import re
import shlex
import sys

from gateway.cli import failures
from pagantic_common.domain.errors import ErrorCode
from tests.e2e.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands():
    """The commands of the first block of examples, but for those that start, stop or converse."""
    (block,) = re.findall(r"```\n(source \.venv/bin/activate\n.*?)```", README, flags=re.DOTALL)
    lines = [shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines()[1:]]
    assert all(line[0] == "pagantic" for line in lines)
    return [line for line in lines if line[1:] not in (["up"], ["down"], ["chat"])]


def test_the_commands_work_in_their_order(system, monkeypatch):
    monkeypatch.setitem(system.environment, "COLUMNS", "80")
    shown = [system.run(*command) for command in commands()]
    assert len(shown) > 9
    assert "-> 391" in shown[1].stderr
    assert "391" in shown[1].stdout


def test_the_python_example_reads_its_text(system):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert system.run(sys.executable, "-c", code).stdout == "Ana 34 Lisbon\n"


def test_the_table_of_codes_names_every_code_in_full():
    assert all(code.value in README for code in ErrorCode)


def test_the_table_of_exit_codes_is_whole():
    exit_codes = {
        value for name, value in vars(failures).items() if name.startswith("EXIT_") and isinstance(value, int)
    }
    assert exit_codes <= {int(code) for code in re.findall(r"^\| (\d+) \|", README, flags=re.MULTILINE)}
