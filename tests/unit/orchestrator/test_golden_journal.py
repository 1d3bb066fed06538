"""What earlier releases wrote into journals is read as it was meant: fields, kinds, and where executions stand."""

import json

import pytest

from pagantic_common.domain.errors import ErrorCode, failure_of
from services.orchestrator.adapters.journal.writes import CHILD, KINDS, entry_from_json, entry_to_json, upcast
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.execution.progress import CallBegan, CallEnded, ChildAnswer, StepEnded
from services.orchestrator.core.execution.replay import Admitted
from services.orchestrator.core.model.contract import OutputContract, RetryPolicy
from services.orchestrator.core.model.plan import Plan, Step, StepResult, Value, ValueKind
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.turn.answering import Enforced, ToolsRan
from services.orchestrator.core.turn.ending import Failed
from services.orchestrator.core.turn.plan_steps import PlanRan
from services.orchestrator.core.turn.preparing import Planned
from services.orchestrator.core.turn.replicas import Replica
from services.orchestrator.core.turn.voting import Sampled
from tests.support.golden_journal import FOLDER, transitions_of
from tests.unit.orchestrator.test_machine import CALL, CLOCK, INVALID, RECORD, USAGE, VALID, request, said

GOLDEN = sorted(FOLDER.glob("journal-*.json"))
PLAN = Plan((Step("a", "infer"), Step("b", "tool", {"tool": "clock", "arguments": {}})))
RESULTS = (StepResult("a", "infer", output=Value(ValueKind.TEXT, text="x"), usage=USAGE), StepResult("b", "tool"))


def executions():
    """Return the entries of an execution of each kind."""
    schema = OutputContract(schema_json="{}")
    inside = [CallBegan(CALL.id, CALL.name), CallEnded(RECORD)]
    return {
        "chat": [Admitted(request(Mode.CHAT)), Prepared(), said("hello")],
        "tools": [
            *(Admitted(request(Mode.CHAT)), Prepared(tools=(CLOCK,)), said("", (CALL,)), *inside, ToolsRan((RECORD,))),
            said("noon"),
        ],
        "interrupted": [Admitted(request(Mode.CHAT)), Prepared(tools=(CLOCK,)), said("", (CALL,)), *inside],
        "retry": [
            Admitted(request(Mode.STRUCTURED, output=schema, retry=RetryPolicy(max_retries=1))),
            *(Prepared(engine_text="g", is_fully_enforced=True), said("bad"), Enforced(INVALID), said("{}")),
            Enforced(VALID),
        ],
        "vote": [
            Admitted(request(Mode.REDUNDANT, output=schema)),
            Prepared(),
            Sampled(tuple(Replica(index, VALID) for index in range(3)), USAGE, 7, "m"),
        ],
        "plan": [
            *(Admitted(request(Mode.PLAN)), Planned(PLAN, USAGE), Prepared(), ChildAnswer("plan/a", 1, Prepared())),
            *(ChildAnswer("plan/a", 1, said("x")), StepEnded(RESULTS[0], VALID), PlanRan(RESULTS, (RECORD,), VALID)),
        ],
        "failed": [
            Admitted(request(Mode.CHAT)),
            Prepared(),
            Failed(failure_of(ErrorCode.TOOL_TIMEOUT, "late"), (RECORD,)),
        ],
    }


def test_there_is_a_journal_of_a_release():
    assert GOLDEN


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_entry_is_read_with_all_that_was_stored(path):
    golden = json.loads(path.read_text(encoding="ascii"))
    assert golden["entries"]
    for document in (one for examples in golden["entries"].values() for one in examples):
        again = json.loads(entry_to_json(entry_from_json(json.dumps(document).encode())))
        stored = upcast(document)
        assert stored[0] in {*KINDS, CHILD}
        assert is_within(stored, again), stored


def test_an_entry_with_the_name_of_a_step_has_the_path_of_the_step():
    assert upcast(["CallBegan", {"call_id": "c", "step": "a"}]) == ["CallBegan.2", {"call_id": "c", "path": "plan/a"}]
    assert upcast(["CallEnded", {"step": ""}]) == ["CallEnded.2", {"path": ""}]
    assert upcast(["Prepared", {}, "a", 2]) == [CHILD, {}, "plan/a", 2, "Prepared"]
    for document in (["CallBegan.2", {"path": "plan/a"}], [CHILD, {}, "plan/a", 2, "Prepared"], ["Prepared", {}]):
        assert upcast(list(document)) == document


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_execution_stands_where_it_stood(path):
    golden = json.loads(path.read_text(encoding="ascii"))
    assert golden["executions"]
    for name, execution in golden["executions"].items():
        entries = [entry_from_json(json.dumps(stored).encode()) for stored in execution["entries"]]
        assert transitions_of(entries) == execution["transitions"], name


def is_within(stored, again):
    """Tell whether all of a stored value is in what is written of it now, which may have fields more."""
    if isinstance(stored, dict) and isinstance(again, dict):
        return all(name in again and is_within(value, again[name]) for name, value in stored.items())
    if isinstance(stored, list) and all(isinstance(one, str) for one in stored):  # a set has no order
        return sorted(stored) == sorted(again)
    if isinstance(stored, list) and isinstance(again, list):
        return len(stored) == len(again) and all(map(is_within, stored, again))
    return stored == again
