"""What .ci/run and the end of a test run do on machines that lack something."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SKIPPING = """
from tests.support.needs import POSTGRESQL, SUITES, skip_without

def test_installable():
    skip_without(POSTGRESQL)

def test_not_installable():
    skip_without(SUITES)

def test_runs():
    pass
"""


def run_tests(folder, **environment):
    (folder / "test_it.py").write_text(SKIPPING)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PAGANTIC_")} | environment
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-c",
        os.devnull,
        "--rootdir",
        folder,
        folder,
    ]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100)


def test_a_run_ends_with_what_it_skipped_and_how_to_have_it(tmp_path):
    done = run_tests(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 skipped for want of PostgreSQL: install Debian's package postgresql" in done.stdout
    assert "1 skipped for want of the public test suites: set PAGANTIC_SUITES to their folder" in done.stdout


def test_where_nothing_may_be_skipped_a_missing_program_is_a_failure_by_name(tmp_path):
    done = run_tests(tmp_path, PAGANTIC_TEST_STRICT="1")
    assert done.returncode == 1
    assert "this machine lacks PostgreSQL: install Debian's package postgresql" in done.stdout
    assert "1 failed, 1 passed, 1 skipped" in done.stdout


def test_a_run_that_takes_too_long_ends_and_says_so(tmp_path):
    done = run_tests(tmp_path, PAGANTIC_TEST_LIMIT_S="0")
    assert done.returncode != 0
    assert "the tests took longer than 0 s" in done.stdout


@pytest.fixture
def machine(tmp_path):
    """A machine with little on it: run .ci/run there with these programs, each a shell script."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "id", "env"):
        (programs / name).symlink_to(shutil.which(name))
    checkout = tmp_path / "checkout"
    (checkout / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", checkout / ".ci" / "run")

    def run(**scripts):
        for name, script in ({"make": 'echo "make $*, strict $PAGANTIC_TEST_STRICT"'} | scripts).items():
            (programs / name).write_text(f"#!{shutil.which('bash')}\n{script}\n")
            (programs / name).chmod(0o755)
        command = [shutil.which("bash"), checkout / ".ci" / "run"]
        environment = {"PATH": str(programs), "BIN": str(programs)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

    return run


# Makes the programs that a package has, once the list of packages is new.
APT_GET = """
case "$*" in
*update*) : > "$BIN/updated" ;;
*install*) [ -e "$BIN/updated" ] || exit 100
    case "$*" in *pgbouncer*) names=pgbouncer ;; *nodejs*) names="node npm" ;; *) names=initdb ;; esac
    for name in $names; do echo "exit 0" > "$BIN/$name"; /bin/chmod 755 "$BIN/$name"; done ;;
esac
"""


def test_ci_installs_what_it_lacks_and_then_runs_the_tests(machine):
    done = machine(**{"apt-get": APT_GET, "sudo": 'shift; "$@"'})
    assert done.returncode == 0, done.stderr
    assert "ci: installing nodejs npm\n" in done.stdout
    assert "ci: the public test suites are not at ../shared/suites" in done.stdout
    assert done.stdout.endswith("make test, strict 1\n")


def test_ci_installs_nothing_that_is_there(machine):
    done = machine(initdb="", pgbouncer="", node="", npm="", **{"apt-get": "echo never >&2; exit 1"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "installing" not in done.stdout


@pytest.mark.parametrize("scripts", [{}, {"apt-get": "exit 100", "sudo": "exit 1"}])
def test_ci_that_cannot_install_fails_by_name(machine, scripts):
    done = machine(initdb="", pgbouncer="", **scripts)
    assert done.returncode == 1
    assert "ci: Node.js with npm is missing and cannot be installed here" in done.stderr
    assert "make" not in done.stdout
