import itertools
import sys

import pytest

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolChoice, ToolChoiceMode, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement, Guarantee, Stage, StageOutcome, StageReport, Violation
from services.orchestrator.app.effects.table import EFFECTS
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.kernel.command import Answer, AnsweredCommand
from services.orchestrator.core.model.contract import OutputContract, RetryPolicy
from services.orchestrator.core.model.request import Hints, Mode, Request
from services.orchestrator.core.model.response import FinishReason, InferenceOutput, ToolCallRecord
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import Enforce, Enforced, Infer, Inferred, RunTools, ToolsRan
from services.orchestrator.core.turn.ending import Failed
from services.orchestrator.core.turn.preparing import Prepare
from services.orchestrator.core.turn.run import (
    TERMINAL,
    TRANSITIONS,
    DiscardedAttempt,
    IllegalTransitionError,
    State,
    check_transition,
)

CLOCK = ToolDefinition("clock", "Tells the time.", "{}")
CALL = ToolCall("c1", "clock", "{}")
RECORD = ToolCallRecord("c1", "clock", "{}", "noon", is_error=False, error_code=None, duration_s=0.1)
USAGE = TokenUsage(prompt_tokens=10, output_tokens=2, context_tokens=12, decode_seconds=0.1)
REQUIRED = Hints(tool_choice=ToolChoice(ToolChoiceMode.REQUIRED))
WRONG = Violation(ErrorCode.CONSTRAINT_SCHEMA_INVALID, "is wrong", "a")
FAILED_STAGE = StageReport(Stage.SCHEMA_VALIDATION, StageOutcome.FAILED, violations=(WRONG,))
INVALID = Enforcement(
    valid=False,
    output="bad",
    stages=(FAILED_STAGE,),
    guarantee=Guarantee.PARTIAL,
    failure=failure_of(ErrorCode.CONSTRAINT_SCHEMA_INVALID, "is wrong"),
)
VALID = Enforcement(
    valid=True,
    output="{}",
    structured_output_json="{}",
    stages=(StageReport(Stage.SCHEMA_VALIDATION, StageOutcome.PASSED),),
    guarantee=Guarantee.VALIDATED,
)


def request(mode=Mode.CHAT, **fields):
    if mode is Mode.STRUCTURED:
        fields.setdefault("output", OutputContract(schema_json="{}"))
    return Request(request_id="r", mode=mode, messages=(Message(Role.USER, "hi"),), **fields)


def said(text="ok", calls=(), finish=None):
    finish = finish or (FinishReason.TOOL if calls else FinishReason.STOP)
    return Inferred(InferenceOutput(text, finish, tool_calls=tuple(calls), usage=USAGE))


def drive(work, *inputs):
    """Return every outcome of a run that these inputs happen to."""
    outcomes = [machine.start(work)]
    for happened in inputs:
        outcomes.append(machine.step(outcomes[-1].run, happened))
    return outcomes


def path(outcomes):
    return [transition.target for outcome in outcomes for transition in outcome.transitions]


def finish_of(outcomes):
    return outcomes[-1].command


@pytest.mark.parametrize(("source", "target"), list(itertools.product(State, State)))
def test_a_transition_is_refused_exactly_when_the_table_lacks_it(source, target):
    if target in TRANSITIONS[source]:
        check_transition(source, target)
    else:
        with pytest.raises(IllegalTransitionError):
            check_transition(source, target)


def test_terminal_states_lead_nowhere_and_live_ones_to_error_and_cancelled():
    for state in State:
        assert state.is_terminal == (state in TERMINAL)
        assert bool(TRANSITIONS[state]) != state.is_terminal
        if not state.is_terminal:
            assert {State.ERROR, State.CANCELLED} <= TRANSITIONS[state]


def test_a_plain_chat_goes_from_init_to_complete():
    outcomes = drive(request(), Prepared(), said("hello"))
    assert path(outcomes) == [State.INIT, State.PREPARE, State.EXECUTE, State.COMPLETE]
    assert isinstance(outcomes[0].command, Prepare)
    finish = finish_of(outcomes)
    assert finish.response.content == "hello"
    assert finish.response.usage == USAGE
    assert finish.turn == ()


def test_a_chat_with_a_session_gives_the_whole_turn_to_the_conversation():
    prepared = Prepared(tools=(CLOCK,))
    outcomes = drive(request(session_id="s"), prepared, said("", [CALL]), ToolsRan((RECORD,)), said("noon"))
    assert [message.role for message in finish_of(outcomes).turn] == [
        Role.USER,
        Role.ASSISTANT,
        Role.TOOL,
        Role.ASSISTANT,
    ]


def test_tool_results_go_back_to_the_model_and_tool_choice_binds_the_first_round_only():
    prepared = Prepared(tools=(CLOCK,))
    outcomes = drive(request(hints=REQUIRED), prepared, said("", [CALL]), ToolsRan((RECORD,)))
    first, ran, second = (outcome.command for outcome in outcomes[1:])
    assert isinstance(first, Infer)
    assert first.tool_choice.mode is ToolChoiceMode.REQUIRED
    assert ran == RunTools((CALL,))
    assert isinstance(second, Infer)
    assert second.tool_choice.mode is ToolChoiceMode.AUTO
    assert second.messages[-1] == Message(Role.TOOL, "noon", tool_call_id="c1", name="clock")
    assert outcomes[-1].run.records == (RECORD,)


@pytest.mark.parametrize(
    ("finish", "code"),
    [
        (FinishReason.STOP, ErrorCode.INFERENCE_MALFORMED_RESPONSE),
        (FinishReason.LENGTH, ErrorCode.INFERENCE_OUTPUT_TRUNCATED),
    ],
)
def test_a_required_call_that_does_not_come_is_a_failure(finish, code):
    outcomes = drive(request(hints=REQUIRED), Prepared(tools=(CLOCK,)), said("no", finish=finish))
    assert finish_of(outcomes).response.failure.code is code


def test_a_model_that_keeps_calling_tools_meets_the_limit_with_what_it_did():
    hints = Hints(max_tool_rounds=2)
    inputs = (Prepared(tools=(CLOCK,)), said("", [CALL]), ToolsRan((RECORD,)), said("still", [CALL]))
    finish = finish_of(drive(request(hints=hints, session_id="s"), *inputs))
    assert finish.response.failure.code is ErrorCode.ORCHESTRATION_ITERATION_LIMIT
    assert finish.response.tool_calls_made == (RECORD,)
    assert finish.response.content == "still"
    assert finish.turn == ()


def test_structured_output_that_passes_is_complete_with_its_guarantee():
    outcomes = drive(
        request(Mode.STRUCTURED), Prepared(engine_text="g", is_fully_enforced=True), said("{}"), Enforced(VALID)
    )
    assert path(outcomes)[-2:] == [State.VALIDATE, State.COMPLETE]
    response = finish_of(outcomes).response
    assert response.validation.guarantee is Guarantee.VALIDATED
    assert response.structured_output_json == "{}"
    assert (response.confidence, response.confidence_source) == (None, "UNSPECIFIED"), "a schema judges nothing"


def test_enforced_is_claimed_only_for_a_complete_output_of_a_whole_schema():
    for whole, complete in itertools.product([True, False], repeat=2):
        output = Inferred(InferenceOutput("{}", FinishReason.STOP, constraint_satisfied=complete))
        prepared = Prepared(engine_text="g", is_fully_enforced=whole)
        command = drive(request(Mode.STRUCTURED), prepared, output)[-1].command
        assert command == Enforce("{}", is_decoder_enforced=whole and complete)


def test_invalid_output_is_fed_back_with_a_new_seed_until_attempts_are_used_up():
    work = request(Mode.STRUCTURED, hints=Hints(seed=5), retry=RetryPolicy(max_retries=1, backoff_s=2.0))
    outcomes = drive(work, Prepared(), said("bad"), Enforced(INVALID))
    retry = outcomes[-1].command
    assert outcomes[-1].discarded == DiscardedAttempt(1, "validation failed")
    assert (retry.seed, retry.retry) == (6, 1)
    assert retry.messages[-2] == Message(Role.ASSISTANT, "bad")
    assert "is wrong" in retry.messages[-1].content
    outcomes += drive(work, Prepared(), said("bad"), Enforced(INVALID), said("bad"), Enforced(INVALID))[4:]
    assert path(outcomes)[-1] is State.ERROR
    assert finish_of(outcomes).response.failure.code is ErrorCode.CONSTRAINT_SCHEMA_INVALID


def test_without_strict_validation_the_best_output_comes_as_partial_with_a_warning():
    output = OutputContract(schema_json="{}", strict_validation=False)
    work = request(Mode.STRUCTURED, output=output, retry=RetryPolicy(max_retries=0))
    response = finish_of(drive(work, Prepared(), said("bad"), Enforced(INVALID))).response
    assert response.failure is None
    assert response.validation.guarantee is Guarantee.PARTIAL
    assert response.validation.warnings
    assert response.validation.remaining_violations
    assert response.confidence is None


def test_structured_with_tools_runs_a_tool_phase_before_the_constrained_one():
    prepared = Prepared(tools=(CLOCK,), engine_text="g", is_fully_enforced=True)
    work = request(Mode.STRUCTURED, tools=("clock",))
    outcomes = drive(work, prepared, said("", [CALL]), ToolsRan((RECORD,)), said("chatty"))
    assert (outcomes[1].command.engine_text, outcomes[1].command.is_streamed) == ("", False)
    last = outcomes[-1].command
    assert isinstance(last, Infer)
    assert (last.engine_text, last.tools, last.is_streamed) == ("g", (), True)


def test_a_chat_with_a_grammar_answers_under_it_once_it_has_done_with_its_tools():
    prepared = Prepared(tools=(CLOCK,), engine_text="g")
    outcomes = drive(request(output=OutputContract(grammar="root ::= 'x'")), prepared, said("chatty"))
    assert outcomes[-1].command.engine_text == "g"
    outcomes = drive(request(), Prepared(tools=(CLOCK,)), said("chatty"))
    assert finish_of(outcomes).response.content == "chatty"


def test_a_discarded_attempt_is_shown_to_the_model_and_not_kept_in_the_conversation():
    work = request(session_id="s", output=OutputContract(schema_json="{}"))
    outcomes = drive(work, Prepared(engine_text="g"), said("bad"), Enforced(INVALID), said("{}"), Enforced(VALID))
    assert [message.content for message in finish_of(outcomes).turn] == ["hi", "{}"]


def test_tool_calls_that_ended_are_told_although_their_turn_was_cancelled():
    cancelled = Failed(failure_of(ErrorCode.CANCELLED_TIMEOUT, "late"), (RECORD,))
    outcomes = drive(request(), Prepared(tools=(CLOCK,)), said("", [CALL]), cancelled)
    assert finish_of(outcomes).response.tool_calls_made == (RECORD,)


def test_a_seed_at_its_limit_wraps_for_the_retry():
    work = request(Mode.STRUCTURED, hints=Hints(seed=2**64 - 1))
    assert drive(work, Prepared(), said("bad"), Enforced(INVALID))[-1].command.seed == 0


def test_a_cancellation_ends_in_cancelled_and_anything_else_in_error():
    cancelled = Failed(failure_of(ErrorCode.CANCELLED_TIMEOUT, "late"))
    assert path(drive(request(), cancelled))[-1] is State.CANCELLED
    assert path(drive(request(), Prepared(), cancelled))[-1] is State.CANCELLED
    assert path(drive(request(), Failed(Failure(code=None, message="bug"))))[-1] is State.ERROR


def test_a_failure_names_the_validation_failure_before_it_as_its_cause():
    overloaded = Failed(failure_of(ErrorCode.INFERENCE_OVERLOADED, "full"))
    outcomes = drive(request(Mode.STRUCTURED), Prepared(), said("bad"), Enforced(INVALID), overloaded)
    failure = finish_of(outcomes).response.failure
    assert failure.code is ErrorCode.INFERENCE_OVERLOADED
    assert [cause.code for cause in failure.caused_by] == [ErrorCode.CONSTRAINT_SCHEMA_INVALID]


def test_every_command_that_has_an_answer_has_an_effect():
    assert set(EFFECTS) == _all_kinds(AnsweredCommand)


def test_the_kinds_of_answers_are_unique():
    kinds = [answer.kind for answer in _all_kinds(Answer)]
    assert len(set(kinds)) == len(kinds)


def _all_kinds(base):
    kinds = {kind for child in base.__subclasses__() for kind in (child, *_all_kinds(child))}
    return {kind for kind in kinds if getattr(sys.modules[kind.__module__], kind.__name__, None) is kind}
