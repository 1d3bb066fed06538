"""Requests with a raw prompt in place of messages: which are taken, and what is asked of the model."""

from dataclasses import replace

import pytest

from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.messages import Message, Role, ToolChoice, ToolChoiceMode, ToolDefinition
from pagantic_common.domain.text.citations import CitationPolicy
from services.orchestrator.convert.request import fingerprint_of, request_from_proto
from services.orchestrator.core.admission.budget import TEMPLATE_TOKENS, worst_case
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.model.contract import OutputContract, RetryPolicy, Rule, SchemaInPrompt
from services.orchestrator.core.model.decision import Decisions
from services.orchestrator.core.model.plan import Plan
from services.orchestrator.core.model.request import Hints, Mode, Reasoning, ReasoningMode, Request, SystemPrompt
from services.orchestrator.core.model.request_check import check_request
from services.orchestrator.core.model.response import FinishReason, InferenceOutput
from services.orchestrator.core.model.retrieval import ContextPolicy, Retriever
from services.orchestrator.core.model.voting import Voting
from services.orchestrator.core.tools.policy import ToolAction, ToolPolicy, ToolRule
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import Enforce, Enforced, Infer, Inferred
from services.orchestrator.core.turn.ending import Finish
from tests.unit.orchestrator.test_machine import INVALID

TEXT = "Once upon a time"
CLOCK = ToolDefinition("clock", "Tells the time.", '{"type":"object"}')
SCHEMA = OutputContract(schema_json="{}")


def request(**fields):
    return Request(**{"request_id": "r", "mode": Mode.CHAT, "messages": (), "text_prompt": TEXT, **fields})


def said(text, reason=FinishReason.STOP):
    return Inferred(InferenceOutput(text, reason))


def outcome_of(work, *inputs):
    outcome = machine.start(work)
    for happened in inputs:
        outcome = machine.step(outcome.run, happened)
    return outcome


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"hints": Hints(max_tokens=5, temperature=0.0, stop=("\n",), top_logprobs=1, model="m")},
        {"output": SCHEMA, "rules": (Rule("short", "true"),), "semantic_intent": "a story"},
        {"retry": RetryPolicy(max_retries=1), "output": SCHEMA, "is_background": True, "trace_id": "a" * 32},
    ],
)
def test_a_raw_prompt_goes_with_all_that_needs_no_messages(fields):
    check_request(request(**fields))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": (Message(Role.USER, "hi"),)}, "leave messages unset, or send messages"),
        ({"session_id": "s"}, "leave session_id unset"),
        ({"prompt": SystemPrompt(text="Be brief.")}, "leave prompt unset"),
        ({"tools": ("clock",)}, "leave tools unset"),
        ({"client_tools": (CLOCK,)}, "leave client_tools unset"),
        ({"tool_policy": ToolPolicy((ToolRule(ToolAction.ALLOW, "clock"),))}, "leave tool_rules unset"),
        ({"context": ContextPolicy(Retriever.BM25, "c")}, "leave context unset"),
        ({"plan": Plan()}, "leave plan unset"),
        ({"voting": Voting(2)}, "leave voting unset"),
        ({"decisions": Decisions(())}, "leave decisions unset"),
        ({"hints": Hints(tool_choice=ToolChoice(ToolChoiceMode.NONE))}, "leave hints.tool_choice unset"),
        ({"hints": Hints(max_tool_rounds=1)}, "leave hints.max_tool_rounds unset"),
        ({"hints": Hints(reasoning=Reasoning(ReasoningMode.OFF))}, "leave hints.reasoning unset"),
        ({"output": OutputContract(citations=CitationPolicy())}, "leave output.citations unset"),
        ({"output": replace(SCHEMA, schema_in_prompt=SchemaInPrompt.ON)}, "leave output.schema_in_prompt unset"),
        ({"hints": Hints(temperature=3.0)}, "hints.temperature"),
        *(
            ({"mode": mode}, f"mode {mode} reads messages: send these in place of text_prompt")
            for mode in Mode
            if mode is not Mode.CHAT
        ),
    ],
)
def test_a_raw_prompt_beside_what_needs_messages_is_refused_by_the_name_of_that(fields, words):
    with pytest.raises(InvalidRequest, match=words):
        check_request(request(**fields))


def test_the_model_is_asked_for_the_text_alone():
    command = outcome_of(request(), Prepared(system_prompt="Be brief.")).command
    assert isinstance(command, Infer)
    assert (command.text_prompt, command.messages, command.tools) == (TEXT, (), ())
    assert not request().offers_registered_tools


@pytest.mark.parametrize(
    ("text", "reason"), [("", FinishReason.STOP), ("\n", FinishReason.LENGTH), ("there was", FinishReason.STOP)]
)
def test_a_continuation_may_be_empty(text, reason):
    command = outcome_of(request(), Prepared(), said(text, reason)).command
    assert isinstance(command, Finish)
    assert (command.response.content, command.response.failure, command.response.finish_reason) == (text, None, reason)


def test_a_retry_continues_the_same_text_with_the_next_seed():
    work = request(output=SCHEMA, retry=RetryPolicy(max_retries=1), hints=Hints(seed=4))
    first = outcome_of(work, Prepared()).command
    checked = outcome_of(work, Prepared(), said("x")).command
    again = outcome_of(work, Prepared(), said("x"), Enforced(INVALID)).command
    assert isinstance(checked, Enforce)
    assert (again.text_prompt, again.messages, again.retry) == (TEXT, (), 1)
    assert (first.seed, again.seed) == (4, 5)


def test_the_text_counts_in_the_worst_case_of_a_budget():
    command = outcome_of(request(), Prepared()).command
    assert worst_case(command, Hints(max_tokens=7), None, 0).tokens == len(TEXT) + TEMPLATE_TOKENS + 7


def test_the_text_is_read_from_the_contract_and_is_part_of_the_fingerprint():
    sent = execution_pb2.SystemRequest(mode=execution_pb2.MODE_CHAT, text_prompt=TEXT)
    other = execution_pb2.SystemRequest(mode=execution_pb2.MODE_CHAT, text_prompt=TEXT + ",")
    assert request_from_proto(sent, "r").text_prompt == TEXT
    assert fingerprint_of(sent) != fingerprint_of(other)
