"""How many entries the lists of a request may have, before anything reads it."""

import re
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic.common.v1 import message_pb2
from pagantic.constraint.v1 import contract_pb2
from pagantic.inference.v1 import inference_service_pb2
from pagantic.orchestrator.v1 import decision_pb2, execution_pb2, plan_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.chunks import MAX_CHUNKS
from pagantic_common.domain.images import MAX_IMAGES
from pagantic_common.rpc.counting import LIMITS, MAX_ENTRIES, objection_of
from services.constraint.core.rules import compiled
from services.context.core.policy import MAX_MORE_QUERIES
from services.context.settings import MAX_DOCUMENTS_PER_INGEST
from services.inference.app import scoring
from services.inference.core import embedding
from services.inference.core import request_check as inference_check
from services.orchestrator.app.effects.preparing import MAX_RECALLED_MESSAGES
from services.orchestrator.app.history import MAX_CHANGED
from services.orchestrator.app.running.models import MAX_RERANKED
from services.orchestrator.core.model import contract, decision, request_check
from services.orchestrator.core.model.plan import MAX_STEPS
from services.orchestrator.core.routing import prefixes
from services.orchestrator.core.tools.policy import MAX_RULES as MAX_TOOL_RULES
from services.orchestrator.ports.journal import MAX_STATE_VALUES
from services.rerank.core.policy import MAX_SCORERS

SERVICES = (
    "orchestrator.v1.orchestrator_service",
    "constraint.v1.constraint_service",
    "context.v1.context_service",
    "inference.v1.inference_service",
    "rerank.v1.rerank_service",
    "tools.v1.tools_service",
)


def lists_of(descriptor, seen):
    """Yield the full names of the repeated fields that a message can hold, at any depth."""
    if descriptor.full_name in seen:
        return
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        if field.is_repeated and not descriptor.GetOptions().map_entry:
            yield field.full_name
        if field.message_type is not None:
            yield from lists_of(field.message_type, seen)


def lists_of_requests():
    seen = set()
    for name in SERVICES:
        file = import_module(f"pagantic.{name}_pb2").DESCRIPTOR
        for service in file.services_by_name.values():
            for method in service.methods:
                yield from lists_of(method.input_type, seen)


def limit(name):
    package, message, field = name.split(".")
    return LIMITS[f"pagantic.{package}.v1.{message}.{field}"]


def request(**fields):
    return execution_pb2.SystemRequest(**fields)


def test_every_repeated_field_of_every_request_has_a_limit():
    assert set(lists_of_requests()) == set(LIMITS)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("orchestrator.SystemRequest.rules", request_check.MAX_RULES),
        ("orchestrator.SystemRequest.client_tools", request_check.MAX_CLIENT_TOOLS),
        ("orchestrator.SystemRequest.tool_rules", MAX_TOOL_RULES),
        ("orchestrator.SystemRequest.metadata", request_check.MAX_METADATA),
        ("orchestrator.UpdateExecutionRequest.metadata", request_check.MAX_METADATA),
        ("orchestrator.ExecutionHints.stop", request_check.MAX_STOP_STRINGS),
        ("orchestrator.ExecutionHints.logit_bias", request_check.MAX_BIASED_TOKENS),
        ("orchestrator.ExecutionPlan.steps", MAX_STEPS),
        ("orchestrator.Replay.tool_results", contract.MAX_CHANGED_RESULTS),
        ("orchestrator.Decisions.questions", decision.MAX_QUESTIONS),
        ("orchestrator.ChoiceQuestion.options", decision.MAX_ANSWERS),
        ("orchestrator.ScoreQuestion.levels", decision.MAX_ANSWERS),
        ("orchestrator.UpdateSessionRequest.state_json", MAX_STATE_VALUES),
        ("orchestrator.UpdateSessionRequest.appended_messages", MAX_CHANGED),
        ("orchestrator.UpdateSessionRequest.replaced_messages", MAX_CHANGED),
        ("orchestrator.RerankRequest.texts", MAX_RERANKED),
        ("orchestrator.ContextIR.chunks", MAX_CHUNKS),
        ("context.BuildContextRequest.chunks", MAX_CHUNKS),
        ("context.IngestRequest.documents", MAX_DOCUMENTS_PER_INGEST),
        ("context.RetrieveRequest.more_queries", MAX_MORE_QUERIES),
        ("context.RerankPolicy.scorers", MAX_SCORERS),
        ("constraint.EnforceRequest.rules", compiled.MAX_RULES),
        ("inference.InferRequest.stop", inference_check.MAX_STOP_STRINGS),
        ("inference.Sampling.logit_bias", inference_check.MAX_BIASED_TOKENS),
    ],
)
def test_limits_are_those_of_the_services(name, most):
    assert limit(name) == most


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("orchestrator.Step.depends_on", MAX_STEPS),
        ("common.Message.parts", 2 * MAX_IMAGES + 1),
        ("inference.PromptPrefixes.keys", max(prefixes.MAX_BLOCKS, inference_check.MAX_PREFIX_KEYS)),
        ("inference.ScoreRequest.continuations", scoring.MAX_CONTINUATIONS),
        ("inference.ScoreRequest.branches", scoring.MAX_BRANCHES),
        ("inference.ScoreBranch.continuations", scoring.MAX_BRANCH_CONTINUATIONS),
        ("inference.ScorePairsRequest.texts", embedding.MAX_TEXTS),
        ("inference.EmbedRequest.texts", embedding.MAX_TEXTS),
        ("inference.ChatPrompt.messages", MAX_RECALLED_MESSAGES + limit("orchestrator.SystemRequest.messages")),
    ],
)
def test_limits_leave_room_for_the_calls_between_services(name, most):
    assert limit(name) >= most


def full():
    """Return a request with a plan, whose lists are full in several depths."""
    call = message_pb2.ToolCall(id="c", name="clock", arguments_json="{}")
    turns = plan_pb2.MessageList(messages=[message_pb2.Message(tool_calls=[call] * 128)])
    step = plan_pb2.Step(name="a", depends_on=["b"] * 64, input=plan_pb2.StepInput(messages=turns))
    option = decision_pb2.Option(text="yes")
    question = decision_pb2.Question(choice=decision_pb2.ChoiceQuestion(options=[option] * 255))
    return request(
        messages=[message_pb2.Message(content="hi")] * 4096,
        hints=execution_pb2.ExecutionHints(stop=["."] * 16, logit_bias=dict.fromkeys(range(1024), 1.0)),
        prompt=execution_pb2.SystemPrompt(
            instructions=execution_pb2.Instructions(sets=[execution_pb2.InstructionSet(rules=["be brief"] * 1000)])
        ),
        plan=plan_pb2.ExecutionPlan(steps=[step] * 64),
        rules=[contract_pb2.Rule(name="r")] * 100,
        metadata={str(number): "" for number in range(64)},
        decisions=decision_pb2.Decisions(questions=[question] * 100),
    )


PLACES = {
    "messages has 4097 entries, at most 4096 are taken": lambda whole: whole.messages.add(),
    "rules has 101 entries, at most 100": lambda whole: whole.rules.add(),
    "metadata has 65 entries": lambda whole: whole.metadata.update({"more": ""}),
    "hints.stop has 17 entries": lambda whole: whole.hints.stop.append("!"),
    "hints.logit_bias has 1025 entries": lambda whole: whole.hints.logit_bias.update({2000: 1.0}),
    r"prompt.instructions.sets\[0\].rules has 1001": lambda whole: whole.prompt.instructions.sets[0].rules.append("x"),
    "plan.steps has 65 entries, at most 64": lambda whole: whole.plan.steps.add(),
    r"plan.steps\[63\].depends_on has 1025": lambda whole: whole.plan.steps[63].depends_on.extend(["x"] * 961),
    r"plan.steps\[7\].input.messages.messages\[0\].tool_calls has 129 entries": lambda whole: (
        whole.plan.steps[7].input.messages.messages[0].tool_calls.add()
    ),
    r"decisions.questions\[99\].choice.options has 256": lambda whole: whole.decisions.questions[
        99
    ].choice.options.add(),
}


@pytest.mark.parametrize("reason", PLACES)
def test_one_entry_more_anywhere_is_named_by_its_path(reason):
    whole = full()
    assert objection_of(whole) == ""
    PLACES[reason](whole)
    assert re.match(reason, objection_of(whole))


def test_a_replaced_message_is_named_by_its_position():
    update = pb.UpdateSessionRequest(replaced_messages={7: message_pb2.Message()})
    assert objection_of(update) == ""
    update.replaced_messages[7].tool_calls.extend([message_pb2.ToolCall()] * 129)
    assert objection_of(update).startswith("replaced_messages[7].tool_calls has 129 entries, at most 128 are taken")


@given(
    st.dictionaries(st.sampled_from(sorted(name for name in LIMITS if "SystemRequest." in name)), st.integers(0, 5000))
)
def test_a_list_is_refused_from_its_limit_on(counts):
    whole = request()
    for name, count in counts.items():
        field = name.rpartition(".")[2]
        if field == "metadata":
            whole.metadata.update({str(number): "" for number in range(count)})
        elif field == "tools":
            whole.tools.extend(["clock"] * count)
        else:
            add = getattr(whole, field).add
            for _ in range(count):
                add()
    over = {name for name, count in counts.items() if count > LIMITS[name]}
    assert bool(objection_of(whole)) == bool(over)


def test_lists_within_lists_are_bounded_together():
    message = message_pb2.Message(tool_calls=[message_pb2.ToolCall()] * 128)
    assert objection_of(request(messages=[message] * 500)) == ""
    assert f"more than {MAX_ENTRIES} entries" in objection_of(request(messages=[message] * 509))


def test_numbers_count_for_their_own_list_alone():
    said = inference_service_pb2.InferRequest(said_tokens=range(2 * MAX_ENTRIES))
    assert objection_of(said) == ""
    said.said_tokens.extend(range(1 << 20))
    assert objection_of(said).startswith("said_tokens has 1179648 entries, at most 1048576 are taken")
