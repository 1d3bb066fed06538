"""Programs of our own: each runs the code of its parent, and imports nothing from the current folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from pagantic_common import run

ROOT = Path(__file__).parents[3]
TRAPS = ("deploy", "gateway", "google", "grpc", "json", "pagantic", "pagantic_common", "services", "structlog")


@pytest.fixture
def trapped(tmp_path):
    """A folder whose packages end the process that imports them."""
    for name in TRAPS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('trapped')\n", encoding="utf-8")
    return tmp_path


def run_in(folder, *command):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_a_program_imports_nothing_from_the_current_folder(trapped):
    done = run_in(trapped, *run.command("gateway.cli.main", "--version"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pagantic ")


def test_started_without_the_safe_path_it_forgets_the_folder_of_its_file(trapped):
    done = run_in(trapped, sys.executable, str(ROOT / "pagantic_common" / "run.py"), "deploy.local", "--help")
    assert done.returncode == 0, done.stderr
    assert "python -m deploy.local" in done.stdout


def test_a_program_has_the_code_and_the_arguments_of_its_parent(tmp_path):
    (tmp_path / "pagantic_common").mkdir()
    copy = tmp_path / "pagantic_common" / "run.py"
    copy.write_bytes((ROOT / "pagantic_common" / "run.py").read_bytes())
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "__init__.py").touch()
    (tmp_path / "services" / "shown.py").write_text(
        "import sys\nprint(__name__, __file__, sys.argv[1:])\n", encoding="utf-8"
    )
    command = [sys.executable, "-P", str(copy), "services.shown", "a", "b c"]
    assert run_in("/", *command).stdout == f"__main__ {tmp_path}/services/shown.py ['a', 'b c']\n"
    (tmp_path / "pagantic").mkdir()
    (tmp_path / "services").rename(tmp_path / "pagantic" / "services")  # as the wheel has it
    (tmp_path / "pagantic" / "__init__.py").touch()
    assert run_in("/", *command).stdout == f"__main__ {tmp_path}/pagantic/services/shown.py ['a', 'b c']\n"


def test_without_a_module_it_says_what_it_takes():
    done = run_in(ROOT, sys.executable, "-m", "pagantic_common.run")
    assert done.returncode == 1
    assert done.stderr == "usage: python -m pagantic_common.run MODULE [ARGUMENT...]\n"


def test_names_of_other_packages_stay(monkeypatch):
    monkeypatch.setattr(run, "_IS_INSTALLED", True)
    assert run.locate("services.tools") == "pagantic.services.tools"
    assert run.locate("servicesx.tools") == "servicesx.tools"
    assert run.locate("pagantic_common.workers.worker") == "pagantic_common.workers.worker"
