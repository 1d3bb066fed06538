"""The contract's tables of the lifecycle and of failures, row by row, against the machine."""

import itertools

import pytest

from pagantic_common.domain.errors import ErrorCategory, ErrorCode, failure_of
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.model.contract import OutputContract, RetryPolicy, Rule
from services.orchestrator.core.model.decision import Decisions, Question, QuestionKind
from services.orchestrator.core.model.plan import Plan, Step, StepResult, Value, ValueKind
from services.orchestrator.core.model.request import Hints, Mode, Request
from services.orchestrator.core.model.response import FinishReason, InferenceOutput, ToolCallRecord
from services.orchestrator.core.model.voting import Voting
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import Enforced, Inferred, ToolsRan
from services.orchestrator.core.turn.deciding import Decided
from services.orchestrator.core.turn.ending import Failed, Finish
from services.orchestrator.core.turn.plan_steps import PlanRan
from services.orchestrator.core.turn.preparing import Planned
from services.orchestrator.core.turn.replicas import Replica
from services.orchestrator.core.turn.run import State
from services.orchestrator.core.turn.voting import Sampled
from tests.unit.orchestrator.test_machine import INVALID, VALID

SCHEMA = OutputContract(schema_json="{}")
LENIENT = OutputContract(schema_json="{}", strict_validation=False)
PLAN = Plan((Step("a", "infer"),))
REJECTED = Plan((Step("a", "nothing"),))
SAID = Inferred(InferenceOutput("x", FinishReason.STOP))
STEP = StepResult("a", "infer", output=Value(ValueKind.TEXT, text="x"))
NO_RETRY = RetryPolicy(max_retries=0)
CANCELLED = Failed(failure_of(ErrorCode.CANCELLED_SIGNAL, "left"))
BROKEN = Failed(failure_of(ErrorCode.INFERENCE_ENGINE_ERROR, "broken"))


def request(mode, **fields):
    return Request(request_id="r", mode=mode, messages=(Message(Role.USER, "hi"),), **fields)


def moves(work, *inputs):
    """Return every transition of a run, as (from, to)."""
    outcome = machine.start(work)
    transitions = list(outcome.transitions)
    for happened in inputs:
        outcome = machine.step(outcome.run, happened)
        transitions += outcome.transitions
    return [(one.source, one.target) for one in transitions[1:]], outcome


def sampled(*enforcements):
    return Sampled(tuple(Replica(index, one) for index, one in enumerate(enforcements)), TokenUsage())


# (from, to, when) of the contract, a request and what happens to it; the last transition is the row's.
STRUCTURED = request(Mode.STRUCTURED, output=SCHEMA)
ROWS = {
    "INIT PLAN: mode is PLAN, no plan is brought": (request(Mode.PLAN), ()),
    "INIT PREPARE: otherwise": (request(Mode.CHAT), ()),
    "PLAN PREPARE: the plan is accepted": (request(Mode.PLAN), (Planned(PLAN, TokenUsage()),)),
    "PREPARE EXECUTE: resolved": (request(Mode.CHAT), (Prepared(),)),
    "EXECUTE VALIDATE: output produced, and the request validates": (STRUCTURED, (Prepared(), SAID)),
    "EXECUTE COMPLETE: CHAT without contract, rules or intent": (request(Mode.CHAT), (Prepared(), SAID)),
    "VALIDATE COMPLETE: all stages pass": (STRUCTURED, (Prepared(), SAID, Enforced(VALID))),
    "VALIDATE COMPLETE: attempts used up and not strict": (
        request(Mode.STRUCTURED, output=LENIENT, retry=NO_RETRY),
        (Prepared(), SAID, Enforced(INVALID)),
    ),
    "VALIDATE EXECUTE: a retry is left": (STRUCTURED, (Prepared(), SAID, Enforced(INVALID))),
    "VALIDATE ERROR: attempts used up": (
        request(Mode.STRUCTURED, output=SCHEMA, retry=NO_RETRY),
        (Prepared(), SAID, Enforced(INVALID)),
    ),
    "VALIDATE ERROR: a failure that no retry can mend": (STRUCTURED, (Prepared(), SAID, BROKEN)),
    "PLAN ERROR: the plan is rejected": (request(Mode.PLAN, plan=REJECTED), ()),
    "PLAN CANCELLED: any live state": (request(Mode.PLAN), (CANCELLED,)),
    "PREPARE ERROR: any live state": (request(Mode.CHAT), (BROKEN,)),
    "PREPARE CANCELLED: any live state": (request(Mode.CHAT), (CANCELLED,)),
    "EXECUTE ERROR: any live state": (request(Mode.CHAT), (Prepared(), BROKEN)),
    "EXECUTE CANCELLED: any live state": (request(Mode.CHAT), (Prepared(), CANCELLED)),
    "VALIDATE CANCELLED: any live state": (STRUCTURED, (Prepared(), SAID, CANCELLED)),
}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_the_transition_table_is_taken_when_it_says(row):
    source, target = row.split(":")[0].split()
    assert moves(*[ROWS[row][0], *ROWS[row][1]])[0][-1] == (State(source), State(target))


PATHS = {
    Mode.CHAT: (request(Mode.CHAT), (Prepared(), SAID), "INIT PREPARE EXECUTE COMPLETE"),
    Mode.STRUCTURED: (STRUCTURED, (Prepared(), SAID, Enforced(VALID)), "INIT PREPARE EXECUTE VALIDATE COMPLETE"),
    Mode.PLAN: (
        request(Mode.PLAN),
        (Planned(PLAN, TokenUsage()), Prepared(), PlanRan((STEP,))),
        "INIT PLAN PREPARE EXECUTE VALIDATE COMPLETE",
    ),
    Mode.DECIDE: (
        request(Mode.DECIDE, decisions=Decisions((Question(QuestionKind.PREDICATE, "p"),))),
        (Prepared(), Decided(((-1.0, -2.0),), model="m")),
        "INIT PREPARE EXECUTE COMPLETE",
    ),
    Mode.REDUNDANT: (
        request(Mode.REDUNDANT, output=SCHEMA, voting=Voting(2)),
        (Prepared(), sampled(VALID, VALID)),
        "INIT PREPARE EXECUTE VALIDATE COMPLETE",
    ),
}


@pytest.mark.parametrize("mode", Mode)
def test_every_mode_goes_through_its_states(mode):
    work, inputs, states = PATHS[mode]
    taken, _ = moves(work, *inputs)
    assert [source.value for source, _ in taken] + [taken[-1][1].value] == states.split()


FAILURES = {
    ErrorCategory.INFERENCE_FAILURE: {
        "INFERENCE_ENGINE_ERROR": True,
        "INFERENCE_MODEL_UNAVAILABLE": True,
        "INFERENCE_CONTEXT_EXCEEDED": False,
        "INFERENCE_MALFORMED_RESPONSE": True,
        "INFERENCE_OVERLOADED": True,
        "INFERENCE_OUTPUT_TRUNCATED": False,
    },
    ErrorCategory.TOOL_FAILURE: {  # the tool is not idempotent
        "TOOL_NOT_FOUND": False,
        "TOOL_INVALID_ARGUMENTS": False,
        "TOOL_EXECUTION_FAILED": False,
        "TOOL_TIMEOUT": False,
        "TOOL_UNAVAILABLE": False,
        "TOOL_DENIED": False,
        "TOOL_OUTCOME_UNKNOWN": False,
    },
    ErrorCategory.CONSTRAINT_FAILURE: {
        "CONSTRAINT_GRAMMAR_INVALID": False,
        "CONSTRAINT_GRAMMAR_REJECTED": True,
        "CONSTRAINT_SCHEMA_INVALID": True,
        "CONSTRAINT_JSON_INVALID": True,
        "CONSTRAINT_ENUM_UNRECOGNIZED": True,
        "CONSTRAINT_TOO_COMPLEX": False,
    },
    ErrorCategory.VALIDATION_FAILURE: {"VALIDATION_RULE_FAILED": True, "VALIDATION_SEMANTIC_FAILED": True},
    ErrorCategory.ORCHESTRATION_FAILURE: {
        "ORCHESTRATION_STEP_MISMATCH": False,
        "ORCHESTRATION_ITERATION_LIMIT": False,
        "ORCHESTRATION_NO_CONSENSUS": False,
        "ORCHESTRATION_PLAN_REJECTED": False,
        "ORCHESTRATION_DEPENDENCY_UNAVAILABLE": True,
        "ORCHESTRATION_DEPENDENCY_FAILED": True,
        "ORCHESTRATION_STEP_TIMEOUT": True,
        "ORCHESTRATION_NOT_ANSWERABLE": False,
        "ORCHESTRATION_TURN_WAITING": False,
    },
    ErrorCategory.CONFIGURATION_FAILURE: {
        "CONFIG_NO_ENGINE": False,
        "CONFIG_SCHEMA_REQUIRED": False,
        "CONFIG_GRAMMAR_NOT_FOUND": False,
        "CONFIG_INVALID": False,
        "CONFIG_MODEL_NOT_FOUND": False,
        "CONFIG_MODEL_CORRUPT": False,
        "CONFIG_NO_SPACE": False,
        "CONFIG_SOURCE_UNAVAILABLE": True,
        "CONFIG_SOURCE_DENIED": False,
    },
    ErrorCategory.CANCELLATION: {"CANCELLED_TIMEOUT": False, "CANCELLED_SIGNAL": False},
    ErrorCategory.ACCESS_FAILURE: {
        "AUTH_MISSING": False,
        "AUTH_INVALID": False,
        "AUTH_EXPIRED": False,
        "AUTH_DENIED": False,
        "AUTH_POLICY": False,
        "QUOTA_RATE": True,
        "QUOTA_CONCURRENCY": True,
        "QUOTA_BUDGET": False,
        "QUOTA_STORAGE": False,
        "GUARD_BLOCKED": False,
    },
}


@pytest.mark.parametrize(("mode", "code"), list(itertools.product(Mode, ErrorCode)))
def test_every_failure_ends_every_mode_with_its_category_and_whether_to_try_again(mode, code):
    (row,) = [(category, rows[code.value]) for category, rows in FAILURES.items() if code.value in rows]
    work, inputs, _ = PATHS[mode]
    for count in range(len(inputs)):  # in each live state that the mode goes through
        taken, outcome = moves(work, *inputs[:count], Failed(failure_of(code, "x")))
        finish = outcome.command
        assert isinstance(finish, Finish)
        failure = finish.response.failure
        assert (failure.code, failure.category, failure.retryable) == (code, *row)
        is_cancelled = row[0] is ErrorCategory.CANCELLATION
        assert taken[-1][1] is (State.CANCELLED if is_cancelled else State.ERROR)
        assert finish.turn == ()


CALL = ToolCall("c1", "clock", "{}")
FAILED_CALL = ToolCallRecord("c1", "clock", "{}", "it broke", True, ErrorCode.TOOL_EXECUTION_FAILED, 0.1)
RULE = Rule("short", expression="size(output) < 5")
RULED = failure_of(ErrorCode.VALIDATION_RULE_FAILED, "rule")


def test_a_chat_recovers_from_a_tool_that_failed_by_telling_the_model():
    tool = ToolDefinition("clock", "Tells the time.", "{}")
    asked = Inferred(InferenceOutput("", FinishReason.TOOL, tool_calls=(CALL,)))
    _, outcome = moves(request(Mode.CHAT), Prepared(tools=(tool,)), asked, ToolsRan((FAILED_CALL,)))
    assert outcome.command.messages[-1] == Message(Role.TOOL, "it broke", tool_call_id="c1", name="clock")
    outcome = machine.step(outcome.run, SAID)
    assert outcome.command.response.failure is None


@pytest.mark.parametrize("mode", [Mode.CHAT, Mode.STRUCTURED])
def test_constraint_and_validation_failures_are_retried_with_their_violations(mode):
    work = request(mode, output=SCHEMA, rules=(RULE,), hints=Hints(seed=1))
    taken, outcome = moves(work, Prepared(), SAID, Enforced(INVALID), SAID, Enforced(VALID))
    assert (State.VALIDATE, State.EXECUTE) in taken
    assert outcome.command.response.failure is None
    assert outcome.run.attempt == 2


def test_the_last_category_wins_when_attempts_are_used_up():
    work = request(Mode.STRUCTURED, output=SCHEMA, retry=RetryPolicy(max_retries=1))
    ruled = type(INVALID)(valid=False, output="x", failure=RULED)
    _, outcome = moves(work, Prepared(), SAID, Enforced(INVALID), SAID, Enforced(ruled))
    assert outcome.command.response.failure.category is ErrorCategory.VALIDATION_FAILURE


def test_a_vote_recovers_from_replicas_that_fail_and_not_when_all_do():
    work = request(Mode.REDUNDANT, output=SCHEMA, voting=Voting(3))
    lost = Replica(1, failure=failure_of(ErrorCode.INFERENCE_ENGINE_ERROR, "x"))
    replicas = (Replica(0, VALID), lost, Replica(2, INVALID))
    _, outcome = moves(work, Prepared(), Sampled(replicas, TokenUsage()))
    assert outcome.command.response.failure is None
    assert [one.failure is None for one in outcome.command.response.candidates] == [True, False, False]
    _, outcome = moves(work, Prepared(), Sampled((replicas[2], lost, replicas[2]), TokenUsage()))
    assert outcome.command.response.failure.category is ErrorCategory.CONSTRAINT_FAILURE
