from dataclasses import replace

import pytest

from pagantic_common.domain.errors import ErrorCode, failure_of
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement, Guarantee, Stage, StageOutcome, StageReport
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.model.contract import OutputContract, RetryPolicy
from services.orchestrator.core.model.request import Hints, Mode
from services.orchestrator.core.model.response import FinishReason, InferenceOutput
from services.orchestrator.core.turn.answering import Enforced, Inferred
from services.orchestrator.core.turn.run import State
from tests.unit.orchestrator.test_machine import (
    CLOCK,
    INVALID,
    REQUIRED,
    VALID,
    drive,
    finish_of,
    path,
    request,
    said,
)

REPAIRED = Enforcement(
    valid=True,
    output="[1]",
    structured_output_json="[1]",
    stages=(StageReport(Stage.JSON_REPAIR, StageOutcome.REPAIRED, ("closed 1 open container",)),),
    guarantee=Guarantee.REPAIRED,
)

REJECTED = replace(INVALID, failure=failure_of(ErrorCode.CONSTRAINT_GRAMMAR_REJECTED, "is not derived"))


def cut(output_tokens=40, window=1000):
    usage = TokenUsage(prompt_tokens=10, output_tokens=output_tokens, context_tokens=10 + output_tokens)
    return Inferred(InferenceOutput("[1", FinishReason.LENGTH, usage=replace(usage, context_window=window)))


def structured(**fields):
    fields.setdefault("hints", Hints(max_tokens=40))
    return request(Mode.STRUCTURED, **fields)


def test_an_answer_that_only_repair_could_close_is_truncated_and_names_the_limit():
    outcomes = drive(structured(), Prepared(), cut(), Enforced(REPAIRED))
    response = finish_of(outcomes).response
    assert path(outcomes)[-1] is State.ERROR
    assert response.failure.code is ErrorCode.INFERENCE_OUTPUT_TRUNCATED
    assert "max_tokens 40" in response.failure.message
    assert not response.failure.retryable
    assert "stop" not in response.failure.details
    assert (response.content, response.finish_reason) == ("[1", FinishReason.LENGTH)


def test_the_same_limit_is_not_tried_again():
    outcomes = drive(structured(retry=RetryPolicy(max_retries=5)), Prepared(), cut(), Enforced(INVALID))
    assert finish_of(outcomes).response.failure.code is ErrorCode.INFERENCE_OUTPUT_TRUNCATED


def test_an_answer_that_is_complete_at_its_last_token_is_a_success():
    outcomes = drive(structured(), Prepared(), cut(), Enforced(VALID))
    response = finish_of(outcomes).response
    assert response.failure is None
    assert response.finish_reason is FinishReason.LENGTH
    assert response.warnings[0].code == "output_truncated"


def test_a_limit_that_the_request_left_open_is_raised():
    work = structured(hints=Hints())
    outcomes = drive(work, Prepared(), cut(), Enforced(REPAIRED))
    retried = outcomes[-1].command
    assert retried.max_tokens == 160
    assert retried.messages == outcomes[1].command.messages
    again = drive(work, Prepared(), cut(), Enforced(REPAIRED), cut(output_tokens=160), Enforced(REPAIRED))
    third = again[-1].command
    assert third.max_tokens == 640


def test_a_full_context_window_leaves_nothing_to_raise():
    outcomes = drive(structured(hints=Hints()), Prepared(), cut(output_tokens=990), Enforced(REPAIRED))
    failure = finish_of(outcomes).response.failure
    assert failure.code is ErrorCode.INFERENCE_OUTPUT_TRUNCATED
    assert "context window of 1000 tokens" in failure.message


def test_without_strict_validation_what_was_cut_is_partial_with_a_warning():
    contract = OutputContract(schema_json="{}", strict_validation=False)
    outcomes = drive(structured(output=contract), Prepared(), cut(), Enforced(REPAIRED))
    response = finish_of(outcomes).response
    assert response.failure is None
    assert (response.content, response.structured_output_json) == ("[1", "[1]")
    assert response.validation.guarantee is Guarantee.PARTIAL
    assert [warning.code for warning in response.warnings] == ["output_truncated"]


def test_a_chat_that_was_cut_says_so():
    outcomes = drive(request(hints=Hints(max_tokens=40)), Prepared(), cut())
    response = finish_of(outcomes).response
    assert response.failure is None
    assert response.finish_reason is FinishReason.LENGTH
    assert "max_tokens 40" in response.warnings[0].message


def test_a_chat_cut_before_its_first_word_is_truncated():
    silent = Inferred(InferenceOutput("", FinishReason.LENGTH, reasoning="hm", usage=TokenUsage(output_tokens=40)))
    response = finish_of(drive(request(hints=Hints(max_tokens=40)), Prepared(), silent)).response
    assert response.failure.code is ErrorCode.INFERENCE_OUTPUT_TRUNCATED
    assert response.reasoning == "hm"


def test_an_answer_that_a_stop_text_ended_and_repair_closed_is_no_success():
    stopped = Inferred(InferenceOutput("[1", FinishReason.STOP, usage=TokenUsage(output_tokens=2)))
    outcomes = drive(structured(hints=Hints(stop=("]",))), Prepared(), stopped, Enforced(REPAIRED))
    failure = finish_of(outcomes).response.failure
    assert failure.code is ErrorCode.INFERENCE_OUTPUT_TRUNCATED
    assert "stop text" in failure.message
    assert failure.details["stop"] == ""


@pytest.mark.parametrize("enforcement", [REPAIRED, INVALID, REJECTED])
@pytest.mark.parametrize("strict", [True, False])
def test_a_stop_text_that_ended_the_output_is_the_reason_whatever_the_contract_says(enforcement, strict):
    contract = OutputContract(schema_json="{}", strict_validation=strict)
    if enforcement is REJECTED:
        contract = OutputContract(grammar='root ::= "[1]"', strict_validation=strict)
    stopped = Inferred(InferenceOutput("[1", FinishReason.STOP, matched_stop="]"))
    work = request(output=contract, hints=Hints(stop=("]",)), retry=RetryPolicy(max_retries=3))
    response = finish_of(drive(work, Prepared(engine_text="g"), stopped, Enforced(enforcement))).response
    assert (response.content, response.matched_stop, response.finish_reason) == ("[1", "]", FinishReason.STOP)
    if strict:
        assert response.failure.code is ErrorCode.INFERENCE_OUTPUT_TRUNCATED
        assert response.failure.details["stop"] == "]"
    else:
        assert [warning.code for warning in response.warnings] == ["output_truncated"]


def test_a_stop_text_after_a_valid_answer_is_a_success():
    stopped = Inferred(InferenceOutput("{}", FinishReason.STOP, matched_stop="END"))
    response = finish_of(drive(structured(hints=Hints(stop=("END",))), Prepared(), stopped, Enforced(VALID))).response
    assert (response.failure, response.content, response.matched_stop) == (None, "{}", "END")


def test_a_stop_text_in_place_of_a_required_call_is_the_reason():
    stopped = Inferred(InferenceOutput("I will", FinishReason.STOP, matched_stop="call"))
    hints = replace(REQUIRED, stop=("call",))
    failure = finish_of(drive(request(hints=hints), Prepared(tools=(CLOCK,)), stopped)).response.failure
    assert (failure.code, failure.details["stop"]) == (ErrorCode.INFERENCE_OUTPUT_TRUNCATED, "call")


def test_the_next_attempt_after_a_raised_limit_has_the_usual_one():
    work = structured(hints=Hints())
    outcomes = drive(work, Prepared(), cut(), Enforced(REPAIRED), cut(output_tokens=100), Enforced(REPAIRED))
    again = drive(work, Prepared(), cut(), Enforced(REPAIRED), said("bad"), Enforced(INVALID))
    raised = outcomes[-1].command
    usual = again[-1].command
    assert raised.max_tokens > 0
    assert usual.max_tokens == 0


def test_a_partial_answer_has_the_reasoning_and_seed_of_its_own_attempt():
    contract = OutputContract(schema_json="{}", strict_validation=False)
    work = structured(output=contract, retry=RetryPolicy(max_retries=1))
    first = Inferred(InferenceOutput("bad", FinishReason.STOP, reasoning="one", seed=1))
    second = Inferred(InferenceOutput("worse", FinishReason.STOP, reasoning="two", seed=2))
    worse = replace(INVALID, output="worse", stages=INVALID.stages * 2)
    response = finish_of(drive(work, Prepared(), first, Enforced(INVALID), second, Enforced(worse))).response
    assert (response.content, response.reasoning, response.seed) == ("bad", "one", 1)
    assert [warning.code for warning in response.warnings] == ["output_invalid"]
