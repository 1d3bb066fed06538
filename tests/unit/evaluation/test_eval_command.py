"""`pagantic eval` against an orchestrator that answers as scripted, over a real socket."""

import asyncio
import json
import math
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from gateway.cli.evaluation import commands
from gateway.cli.main import app
from gateway.evaluation.running import evaluation
from pagantic.common.v1 import chunk_pb2, error_pb2, message_pb2
from pagantic.context.v1 import context_service_pb2
from pagantic.inference.v1 import inference_service_pb2
from pagantic.orchestrator.v1 import event_pb2, execution_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import ErrorCode, Overloaded, Unauthenticated, Unavailable
from tests.unit.client.scripted_orchestrator import ScriptedCollections, ScriptedOrchestrator, serving

CASES = [
    {"name": f"c{index}", "input": f"say {index}", "expected": str(index), "rubric": "short"} for index in range(6)
]


class Door(ScriptedOrchestrator):
    """Says the last word of its input; its judge is sure of 0.9 for even answers, and of 0.2 for odd ones."""

    def __init__(self):
        super().__init__()
        self.ids = []
        self.judged = []
        self.texts = []
        self.refusals = []
        self.even = 0.9
        self.running = self.most = 0
        self.barrier = None

    async def ListModels(self, _request, _context):
        return pb.ListModelsResponse(models=[message_pb2.ModelInfo(name="scripted")])

    async def ExecuteStream(self, request, _context):
        if self.refusals:
            refusal = self.refusals.pop(0)
            if refusal is not None:
                raise refusal
        self.ids.append(request.request_id)
        self.requests.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        if self.barrier is not None:
            await self.barrier.wait()
        self.running -= 1
        word = request.messages[-1].content.rsplit(maxsplit=1)[-1]
        response = execution_pb2.SystemResponse(request_id=request.request_id, content=word)
        if word == "fail":
            response.error.CopyFrom(
                error_pb2.SystemError(code=error_pb2.ERROR_CODE_INFERENCE_ENGINE_ERROR, message="broken")
            )
        yield event_pb2.ExecutionEvent(inference_end=event_pb2.InferenceEnd(model="scripted"))
        yield event_pb2.ExecutionEvent(completed=event_pb2.Completed(response=response))

    async def Execute(self, request, _context):
        self.judged.append(request)
        even = int(request.messages[-1].content) % 2 == 0
        response = execution_pb2.SystemResponse()
        decision = response.decisions.add(confidence=0.9 if even else 0.8)
        question = request.decisions.questions[0]
        if question.HasField("score"):
            decision.score.score = 3.0 if even else 0.0
        else:
            decision.predicate.probability = self.even if even else 0.2
        return response

    async def Embed(self, request, _context):
        self.texts.append(list(request.texts))
        vectors = [[1.0, 0.0], [0.6, 0.8]]
        return inference_service_pb2.EmbedResponse(
            embeddings=[inference_service_pb2.Embedding(values=vector) for vector in vectors]
        )


@pytest.fixture
def door():
    return Door()


@pytest.fixture
def pagantic(door, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluation, "WAITS", replace(evaluation.WAITS, first_s=0.001))
    with serving(door) as address:
        yield lambda *arguments: CliRunner().invoke(
            app, ["eval", *map(str, arguments)], env={"PAGANTIC_ADDRESS": address, "COLUMNS": "160"}
        )


@pytest.fixture
def write(tmp_path):
    def written(cases, **suite):
        (tmp_path / "suite.json").write_text(json.dumps({"cases": cases, **suite}))
        return "suite.json"

    return written


def report_of(result):
    return json.loads(result.stdout)


def test_a_fixed_judge_gives_known_scores(pagantic, door, write):
    scorers = ["exact", "judge", {"judge": {"name": "level", "levels": ["a", "b", "c", "d"]}}, "semantic"]
    result = pagantic(write(CASES, scorers=scorers), "--json")
    report = report_of(result)
    means = {mean["scorer"]: mean["mean"] for mean in report["figures"]["means"]}
    assert means == pytest.approx({"exact": 1.0, "judge": 0.55, "level": 0.5, "semantic": 0.6})
    scores = {result["case"]: result["scores"]["judge"] for result in report["results"]}
    assert (scores["c0"]["value"], scores["c0"]["confidence"]) == (0.9, 0.9)
    assert (scores["c1"]["value"], scores["c1"]["confidence"]) == (0.2, 0.8)
    assert len({request.request_id for request in door.judged}) == 12, "each judgement has an id of its own"
    question = door.judged[0].decisions.questions[0].instructions
    assert question.endswith("short")
    assert [message.role for message in door.judged[0].messages] == [message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT]


def test_the_same_command_sends_only_what_has_no_result(pagantic, door, write, tmp_path):
    suite = write(CASES, scorers=["exact"])
    assert pagantic(suite, "--name", "n").exit_code == 0
    path = tmp_path / "evaluations" / "n.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + lines[4][:30])  # a kill in the middle of the fourth result
    first = list(door.ids)
    result = pagantic(suite, "--name", "n")
    assert "'n' continues: 3 of 6 cases have results" in result.stderr
    assert len(door.ids) == 9
    assert set(door.ids[6:]) < set(first), "under the ids of before"
    again = pagantic(suite, "--name", "n")
    assert (again.exit_code, len(door.ids)) == (0, 9)
    assert "'n' has all results" in again.stderr
    assert len(path.read_bytes().splitlines()) == 7


def test_as_many_cases_run_at_once_as_may(pagantic, door, write):
    door.barrier = asyncio.Barrier(3)  # No case would end with fewer at once.
    assert pagantic(write(CASES, scorers=["exact"]), "--parallel", 3).exit_code == 0
    assert (door.most, len(door.ids)) == (3, 6)


def test_another_evaluation_has_other_ids(pagantic, door, write):
    suite = write(CASES[:1], scorers=["exact"])
    pagantic(suite, "--name", "one")
    pagantic(suite, "--name", "two")
    pagantic(suite)
    assert len(set(door.ids)) == 3


def test_a_changed_suite_and_other_settings_need_another_name(pagantic, door, write):
    pagantic(write(CASES, scorers=["exact"]), "--name", "n")
    changed = pagantic(write(CASES[:2], scorers=["exact"]), "--name", "n")
    assert (changed.exit_code, len(door.ids)) == (2, 6)
    assert "has results of another suite" in changed.stderr
    other = pagantic(write(CASES, scorers=["exact"]), "--name", "n", "--seed", 3)
    assert other.exit_code == 2
    assert "with other settings" in other.stderr


def test_a_failed_case_is_a_result_with_its_code(pagantic, write):
    cases = [*CASES, {"input": "please fail", "expected": "fail"}]
    result = pagantic(write(cases, scorers=["exact"]), "--json")
    assert result.exit_code == 0
    report = report_of(result)
    assert report["figures"]["failed"] == {"INFERENCE_ENGINE_ERROR": 1}
    failed = next(one for one in report["results"] if one["error"])
    assert (failed["error_message"], failed["scores"]["exact"]["value"]) == ("broken", 0)


def test_failed_cases_are_sent_again_only_when_asked_for(pagantic, door, write):
    suite = write([*CASES, {"input": "please fail", "expected": "fail"}], scorers=["exact"])
    pagantic(suite, "--name", "n")
    pagantic(suite, "--name", "n")
    assert len(door.ids) == 7
    result = pagantic(suite, "--name", "n", "--retry-failed", "--json")
    assert door.ids[7:] == [name for name in door.ids[:7] if name.endswith("case-0007")]
    assert len(report_of(result)["results"]) == 7


@pytest.mark.parametrize("code", [ErrorCode.QUOTA_BUDGET, ErrorCode.QUOTA_STORAGE])
def test_a_spent_quota_stops_the_evaluation_at_once(pagantic, door, write, code):
    door.refusals = [Overloaded("spent", code=code, retry_after_s=0.001)]
    result = pagantic(write(CASES, scorers=["exact"]), "--parallel", 1)
    assert (result.exit_code, door.ids) == (3, [])
    assert code.value in result.stderr


def test_a_system_that_is_busy_or_gone_for_a_while_is_asked_again(pagantic, door, write):
    door.refusals = [Overloaded("full", retry_after_s=0.001), Unavailable("starting"), None]
    result = pagantic(write(CASES, scorers=["exact"]), "--json", "--parallel", 1)
    assert report_of(result)["figures"]["failed"] == {}


def test_a_caller_that_is_not_known_stops_the_evaluation_and_reads_how_it_continues(pagantic, door, write):
    door.refusals = [None, None, Unauthenticated("the key is unknown", code=ErrorCode.AUTH_INVALID)]
    suite = write(CASES, scorers=["exact"])
    result = pagantic(suite, "--name", "n", "--parallel", 1)
    assert result.exit_code == 3
    assert "AUTH_INVALID" in result.stderr
    assert "2 of 6 cases have results" in result.stderr
    assert "the same command continues" in result.stderr
    assert pagantic(suite, "--name", "n").exit_code == 0
    assert len(door.ids) == 6


def test_a_stop_says_how_it_continues(pagantic, write, monkeypatch):
    async def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation.Evaluating, "_answer_of", interrupted)
    result = pagantic(write(CASES, scorers=["exact"]), "--name", "n")
    assert result.exit_code == 130
    assert "stopped: 0 of 6 cases have results in 'evaluations/n.jsonl'" in result.stderr


def test_the_gate_ends_the_command(pagantic, write):
    cases = [{**case, "expected": "no"} if index else case for index, case in enumerate(CASES)]
    pagantic(write(CASES, scorers=["exact"]), "--name", "good")
    suite = write(cases, scorers=["exact"])
    failed = pagantic(suite, "--min-score", "exact=0.5")
    assert failed.exit_code == 1
    assert "gate: exact: the mean 0.1667 is below 0.5" in failed.stderr
    passed = pagantic(suite, "--min-score", "0.1", "--baseline", "good")
    assert (passed.exit_code, "gate: passed" in passed.stderr) == (0, True)
    assert "1 pair; not compared: 5 cases that ask or expect something else" in passed.stdout
    wrong = pagantic(suite, "--min-score", "exakt=0.5")
    assert (wrong.exit_code, "there is no score 'exakt'" in wrong.stderr) == (2, True)
    assert pagantic(suite, "--min-score", "exact=x").exit_code == 2
    assert pagantic(suite, "--baseline", "none").exit_code == 2


def test_two_evaluations_are_compared_and_a_page_is_written(pagantic, door, write, tmp_path):
    cases = [{**CASES[index % 6], "name": f"c{index}"} for index in range(40)]
    suite = write(cases, scorers=["judge"])
    pagantic(suite, "--name", "a")
    door.even = 0.1
    pagantic(suite, "--name", "b")
    compared = pagantic("compare", "a", "b", "--html", "page.html")
    assert compared.exit_code == 0
    assert "compared with a: 40 pairs" in compared.stdout
    assert "Compared with a" in (tmp_path / "page.html").read_text()
    gated = pagantic("compare", "a", "b", "--gate")
    assert gated.exit_code == 1
    assert "judge: from 0.5500 to 0.1500, significant" in " ".join(gated.stderr.split())
    assert pagantic("compare", "b", "a", "--gate").exit_code == 0
    assert pagantic("compare", "a", "evaluations/a.jsonl", "--max-regression", "0").exit_code == 0
    assert "b: 40 of 40 cases" in pagantic("show", "b").stdout


class Library(ScriptedCollections):
    """Finds two chunks, and keeps the policies."""

    def __init__(self):
        super().__init__()
        self.policies = []

    async def Retrieve(self, request, _context):
        self.policies.append(request.policy)
        chunks = [chunk_pb2.Chunk(source="b", content="other"), chunk_pb2.Chunk(source="a", content="the lamp is red")]
        return context_service_pb2.RetrieveResponse(chunks=chunks)


def test_retrieval_is_scored_by_the_policy_of_the_request_and_done_once(door, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    library = Library()
    case = {"input": "say it", "relevant": ["a", "c"], "request": {"context": {"collection": "docs", "max_chunks": 7}}}
    suite = write([case], scorers=["ndcg", "recall", "quotes"])
    with serving(door, library) as address:
        result = CliRunner().invoke(app, ["eval", suite, "--json"], env={"PAGANTIC_ADDRESS": address})
    means = {mean["scorer"]: mean["mean"] for mean in report_of(result)["figures"]["means"]}
    assert means == pytest.approx({"ndcg": (1 / math.log2(3)) / (1 + 1 / math.log2(3)), "recall": 0.5, "quotes": 0})
    assert [(policy.collection, policy.max_chunks) for policy in library.policies] == [("docs", 7)]


def test_recorded_executions_are_cases(pagantic, door):
    sent = execution_pb2.SystemRequest(
        mode=execution_pb2.MODE_CHAT,
        messages=[message_pb2.Message(role=message_pb2.ROLE_USER, content="say hello")],
    )
    door.execution.request.CopyFrom(sent)
    result = pagantic("--from-executions", "team=a", "--from-executions", "session=s", "--json")
    listed = next(request for request in door.requests if isinstance(request, pb.ListExecutionsRequest))
    assert (dict(listed.metadata), listed.session_id) == ({"team": "a"}, "s")
    (one,) = report_of(result)["results"]
    assert (one["output"], one["scores"]["exact"]["value"]) == ("hello", 1)
    again = pagantic("--from-executions", "team=a", "--from-executions", "session=s")
    assert "has all results" in again.stderr
    door.execution.ClearField("request")
    none = pagantic("--from-executions", "all")
    assert (none.exit_code, "no recorded execution fits" in none.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["none.yaml"], "cannot read 'none.yaml'"),
        (["--from-executions", "team"], "use all, session=ID, or KEY=VALUE"),
        (["--seed", "1"], "name a SUITE, or --from-executions"),
        (["suite.json", "--name", "../x"], "use letters, digits"),
        (["suite.json", "--from-executions", "all"], "not from both"),
        (["suite.json", "--scorer", "exakt"], "exakt"),
        (["compare", "a", "b"], "cannot use"),
    ],
)
def test_wrong_usage_is_reported(pagantic, write, arguments, reason):
    write(CASES, scorers=["exact"])
    result = pagantic(*arguments)
    assert (result.exit_code, reason in result.stderr) == (2, True), result.stderr


def test_a_client_without_the_packages_says_how_to_have_them(pagantic, write, monkeypatch):
    monkeypatch.setattr(commands, "PACKAGES", ("a_package_that_nobody_has",))
    for arguments in ([write(CASES, scorers=["exact"])], ["compare", "a", "b"], ["show", "a"]):
        result = pagantic(*arguments)
        assert (result.exit_code, "pip install 'pagantic[eval]'" in result.stderr) == (2, True)


def test_a_system_that_is_not_there_is_named_and_leaves_no_results(pagantic, write, tmp_path):
    result = pagantic(write(CASES, scorers=["exact"]), "--name", "n", "--address", "127.0.0.1:1")
    assert result.exit_code == 7
    assert "pagantic up" in result.stderr
    assert pagantic("n.yaml").exit_code == 2
    assert (tmp_path / "evaluations" / "n.jsonl").read_bytes() == b""
