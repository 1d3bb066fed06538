"""What .ci/run and the end of a test run do on machines that lack something."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.needs import POSTGRESQL, STRICT, SUITES, skip_without, skipped_lines

ROOT = Path(__file__).parents[3]


def test_a_run_ends_with_what_it_skipped_and_how_to_have_it(monkeypatch):
    monkeypatch.delenv(STRICT, raising=False)
    reports = []
    for need in (SUITES, POSTGRESQL, SUITES):
        with pytest.raises(pytest.skip.Exception) as skipped:
            skip_without(need)
        reports.append(SimpleNamespace(longrepr=("file", 1, f"Skipped: {skipped.value}")))
    assert skipped_lines(reports) == [
        "2 skipped for want of the public test suites: set PAGANTIC_SUITES to their folder",
        "1 skipped for want of PostgreSQL: install Debian's package postgresql",
    ]


def test_where_nothing_may_be_skipped_a_missing_program_is_a_failure_by_name(monkeypatch):
    monkeypatch.setenv(STRICT, "1")
    with pytest.raises(pytest.fail.Exception, match="this machine lacks PostgreSQL: install Debian's package postgres"):
        skip_without(POSTGRESQL)
    with pytest.raises(pytest.skip.Exception):
        skip_without(SUITES)


@pytest.mark.parametrize(("failed", "status", "said"), [(1, 0, "flaky: "), (4, 1, "4 tests failed, more than the 3")])
def test_a_few_failed_tests_run_again_alone(tmp_path, failed, status, said):
    test = tmp_path / "test_flaky.py"
    test.write_text("def test_now():\n    pass\n", encoding="utf-8")
    failures = tmp_path / "failures.json"
    failures.write_text(json.dumps(dict.fromkeys([f"{test}::test_now", "b", "c", "d"][:failed], "first")))
    command = [sys.executable, "-m", "tests.support.rerun", str(failures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, said in done.stdout) == (status, True), done.stdout + done.stderr


@pytest.fixture
def machine(tmp_path):
    """A machine with little on it: run .ci/run there with these programs, each a shell script."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "id", "env", "mktemp", "rm"):
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
    assert "make test FAILURES=" in done.stdout
    assert done.stdout.endswith(", strict 1\n")


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
