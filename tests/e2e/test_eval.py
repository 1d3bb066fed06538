"""`pagantic eval` on the running system: killed in the middle, and continued by the same command."""

import json
import subprocess

import pytest

from pagantic_common.client import Client
from tests.e2e.conftest import ROOT
from tests.support.killing import wait_until

CASES = 200
SUITE = {
    "name": "sums",
    "request": {"hints": {"max_tokens": 6, "temperature": 0, "tool_choice": {"mode": "TOOL_CHOICE_MODE_NONE"}}},
    "scorers": ["numeric", "semantic", "latency"],
    "cases": [
        {"name": f"sum-{index}", "input": f"What is {index} + {3 * index}?", "expected": str(4 * index)}
        for index in range(CASES)
    ],
}


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_cases_that_are_killed_in_the_middle_are_not_repeated(system, tmp_path):
    suite = tmp_path / "sums.json"
    suite.write_text(json.dumps(SUITE), encoding="utf-8")
    results = tmp_path / "sums.jsonl"
    command = ["pagantic", "eval", str(suite), "--name", "sums", "--folder", str(tmp_path), "--json"]

    def ended():
        return results.exists() and results.read_bytes().count(b"\n") - 1

    with subprocess.Popen(
        command, cwd=ROOT, env=system.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        wait_until(lambda: ended() >= CASES // 4, "a quarter of the cases has ended")
        process.kill()
    before = results.read_bytes()
    done = before.count(b"\n") - 1
    assert CASES // 4 <= done < CASES

    continued = system.run(*command, timeout_s=300)
    assert f"continues: {done} of {CASES} cases have results" in continued.stderr
    report = json.loads(continued.stdout)
    assert (report["figures"]["done"], report["figures"]["failed"]) == (CASES, {})
    assert results.read_bytes().startswith(before[: before.rfind(b"\n") + 1]), "what was done stays as it was"

    with Client(system.address("orchestrator")) as client:
        executions = client.list_executions(metadata={"eval.id": report["evaluation"]["id"]}, limit=2 * CASES)
        assert len({execution.request_id for execution in executions}) == len(executions) == CASES
        inferences = [
            sum(event.HasField("inference_start") for event in client.timeline(execution.request_id))
            for execution in executions
        ]
    assert inferences == [1] * CASES, "nothing was computed twice"


@pytest.mark.whole
def test_two_evaluations_on_the_real_system_are_compared(system, tmp_path):
    suite = ROOT / "deploy" / "examples" / "suite.yaml"
    system.run("pagantic", "eval", suite, "--name", "one", "--folder", tmp_path)
    gate = ("--baseline", "one", "--min-score", "trajectory=1", "--min-score", "schema=1", "--max-regression", "1")
    passed = system.run("pagantic", "eval", suite, "--name", "two", "--folder", tmp_path, *gate)
    assert "gate: passed" in passed.stderr
    page = tmp_path / "page.html"
    compared = system.run("pagantic", "eval", "compare", "one", "two", "--folder", tmp_path, "--html", page)
    assert "compared with one: 3 pairs" in compared.stdout
    assert "Compared with one" in page.read_text(encoding="utf-8")
