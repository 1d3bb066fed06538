import json
from dataclasses import replace

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.chunks import FENCED_HEADING
from pagantic_common.domain.errors import ErrorCode, Internal, failure_of
from pagantic_common.domain.messages import Message, Role, ToolDefinition
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.conversation.prompt import Prepared, with_prepared
from services.orchestrator.core.model.contract import OutputContract, RetryPolicy, Rule
from services.orchestrator.core.model.plan import (
    Plan,
    PlanPolicy,
    Step,
    StepKind,
    StepResult,
    Value,
    ValueKind,
    dependencies_of,
)
from services.orchestrator.core.model.request import Mode, Request
from services.orchestrator.core.model.retrieval import (
    ContextPolicy,
    RankingOptions,
    Retriever,
    ScoreFusion,
    WeightedScorer,
)
from services.orchestrator.core.plans.checking import accept_plan, check_plan
from services.orchestrator.core.plans.model_planning import plan_schema, planned, planner_messages
from services.orchestrator.core.plans.planning import static_plan
from services.orchestrator.core.plans.ranking import ranking_options
from services.orchestrator.core.plans.schedule import PlanSchedule
from services.orchestrator.core.plans.step_input import arguments_of, messages_of
from services.orchestrator.core.plans.step_rules import RULES
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.ending import Failed
from services.orchestrator.core.turn.plan_steps import PlanRan, RunPlan
from services.orchestrator.core.turn.preparing import MakePlan, Planned
from services.orchestrator.core.turn.run import State

REJECTED, MISMATCH = ErrorCode.ORCHESTRATION_PLAN_REJECTED, ErrorCode.ORCHESTRATION_STEP_MISMATCH
TEXT = Value(ValueKind.TEXT, text="t")
SCHEMA = OutputContract(schema_json="{}")
GIVEN = {"tool": {"tool": "clock"}, "retrieve": {"collection": "c"}}


def step(name, kind="infer", *depends_on, **fields):
    fields.setdefault("parameters", GIVEN.get(kind, {}))
    return Step(name, kind, depends_on=depends_on, **fields)


def plan(*steps, **policy):
    return Plan(steps, PlanPolicy(**policy))


def reranking(**parameters):
    """A plan that reranks what it retrieves."""
    return plan(step("find", "retrieve"), step("a", "rerank", parameters=parameters))


def checked(found, **bounds):
    return check_plan(found, PlanPolicy(**bounds))[1]


@pytest.mark.parametrize(
    ("found", "code", "reason"),
    [
        (plan(step("")), REJECTED, "has a name that is not of 1 to 64"),
        (plan(step("my step")), REJECTED, "has a name that is not of"),
        (plan(step("a", max_retries=-1)), REJECTED, "max_retries -1: it must be between 0 and 10"),
        (plan(step("a", max_retries=11)), REJECTED, "max_retries 11"),
        (plan(step("a", timeout_s=-1.0)), REJECTED, "timeout of -1 s"),
        (plan(step("a", "tool", output=SCHEMA)), REJECTED, "whose output no contract can bind"),
        (plan(step("a", parameters={"max_tokens": 2**40})), REJECTED, "'max_tokens' out of range"),
        (plan(step("a", parameters={"temperature": 9})), REJECTED, "'temperature' out of range"),
        (plan(step("a", input=Value(ValueKind.MESSAGES))), REJECTED, "input.messages that are not a valid turn"),
        (plan(step("a", "infer", "b"), step("b"), require_linear=True), REJECTED, "step 'a' depends on a later one"),
        (plan(step("a"), step("a")), REJECTED, "'a' is named more than once"),
        (plan(step("a", "dance")), REJECTED, "of kind 'dance', which is not known"),
        (plan(step("a", "infer", "b")), REJECTED, "depends on 'b', which is not a step"),
        (plan(step("a", "infer", "b"), step("b", "infer", "a")), REJECTED, "wait for each other: a -> b -> a"),
        (plan(step("a", "infer", "a")), REJECTED, "a -> a"),
        (plan(*(step(f"s{n}") for n in range(3)), max_steps=2), REJECTED, "3 steps, at most 2"),
        (plan(step("a"), allowed_kinds=frozenset({"tool"})), REJECTED, "not allowed"),
        (plan(step("a", "tool", parameters={})), REJECTED, "needs the parameter 'tool'"),
        (plan(step("a", parameters={"x": 1})), REJECTED, "the parameter 'x', which its kind does not take"),
        (plan(step("a", parameters={"max_tokens": True})), REJECTED, "'max_tokens' of a wrong type"),
        (plan(step("a", parameters={"tools": [1]})), REJECTED, "'tools' that are not names"),
        (plan(step("a", "retrieve", parameters={"collection": "c", "retriever": "x"})), REJECTED, "not known"),
        (reranking(fusion="mean"), REJECTED, "a 'fusion' that is not known; there are weighted, reciprocal_rank"),
        (reranking(scorer="bm25", scorers=[{"scorer": "judge"}]), REJECTED, "both 'scorer' and 'scorers'"),
        (reranking(scorers=[{"weight": 1}]), REJECTED, "'scorers' that are not objects of scorer, weight and model"),
        (reranking(scorers=[{"scorer": "judge", "weight": True}]), REJECTED, "'scorers' that are not objects"),
        (reranking(scorers=[{"scorer": "judge", "size": 1}]), REJECTED, "'scorers' that are not objects"),
        (reranking(diversity=1.5), REJECTED, "'diversity' out of range: it must be between 0 and 1"),
        (reranking(max_per_source=-1), REJECTED, "'max_per_source' out of range"),
        (plan(step("a", "rerank")), MISMATCH, "step 'a' (rerank) cannot work on the request, which gives text"),
        (plan(step("a"), step("b", "rerank")), MISMATCH, "step 'b' (rerank) cannot work on step 'a', which gives text"),
        (plan(step("a", "retrieve"), step("b", "tool")), MISMATCH, "cannot work on step 'a', which gives context"),
        (plan(step("a", "tool"), step("b", "validate")), MISMATCH, "which gives tool_results"),
        (plan(step("a", "rerank", input=TEXT)), MISMATCH, "cannot work on its input text"),
        (
            plan(step("a"), step("b", input=TEXT), step("c", "validate", "a", "b")),
            MISMATCH,
            "works on one value, and waits for 'a', 'b'",
        ),
    ],
)
def test_a_plan_that_cannot_run_is_refused_before_the_first_step(found, code, reason):
    failure = checked(found)
    assert failure.code is code
    assert reason in failure.message


def test_the_services_bounds_are_the_stricter():
    long = plan(*(step(f"s{n}") for n in range(5)))
    assert "at most 4" in checked(long, max_steps=4).message
    assert checked(plan(step("a")), allowed_kinds=frozenset({"tool"})).code is REJECTED
    kept, _ = check_plan(plan(timeout_per_step_s=5.0), PlanPolicy(timeout_per_step_s=2.0, require_linear=True))
    assert (kept.policy.timeout_per_step_s, kept.policy.require_linear) == (2.0, True)


def test_a_plan_without_dependencies_is_linear_and_any_other_is_a_graph():
    assert dependencies_of(plan(step("a"), step("b"), step("c", input=TEXT))) == {"a": (), "b": ("a",), "c": ("b",)}
    graph = plan(step("c", "infer", "a", "b"), step("a"), step("b"))
    assert dependencies_of(graph) == {"c": ("a", "b"), "a": (), "b": ()}
    assert checked(graph) is None


RANKINGS = st.builds(
    RankingOptions,
    st.lists(
        st.builds(WeightedScorer, st.sampled_from(["bm25", "judge"]), st.none() | st.floats(0.1, 10), st.text()),
        max_size=3,
    ).map(tuple),
    st.sampled_from(ScoreFusion),
    st.floats(0, 1),
    st.integers(0, 5),
)


@given(RANKINGS)
def test_a_requests_ranking_is_that_of_the_step_made_for_it(ranking):
    policy = ContextPolicy(Retriever.BM25, "docs", scorer="", ranking=ranking)
    found = static_plan(request(None, context=policy))
    assert checked(found) is None
    parameters = next(one.parameters for one in found.steps if one.kind == "rerank")
    assert ranking_options(json.loads(json.dumps(parameters))) == ranking


def test_a_plan_of_every_kind_is_accepted():
    steps = (step("find", "retrieve"), step("order", "rerank"), step("say"), step("check", "validate"))
    assert checked(plan(*steps)) is None
    assert checked(plan()) is None


GRAPHS = st.integers(1, 7).flatmap(
    lambda size: st.tuples(*(st.lists(st.integers(0, max(0, n - 1)), max_size=3, unique=True) for n in range(size)))
)


@given(GRAPHS, st.booleans(), st.randoms(use_true_random=False), st.integers(0, 8))
def test_every_step_starts_once_after_what_it_waits_for(graph, is_linear, random, fails_at):
    steps = [
        step(f"s{n}", "infer", *(f"s{m}" for m in needs if m < n), **({"input": TEXT} if n and not needs else {}))
        for n, needs in enumerate(graph)
    ]
    found = plan(*steps, require_linear=is_linear)
    assert checked(found) is None
    needed = dependencies_of(found)
    schedule, started = PlanSchedule(found), []
    while schedule.running or schedule.ready():
        for one in schedule.ready():
            assert set(needed[one.name]) <= {result.name for result in schedule.results}
            assert not schedule.has_failed
            started.append(one.name)
            schedule = schedule.started(one)
            assert not is_linear or len(schedule.running) == 1
        name = random.choice(sorted(schedule.running))
        is_failure = len(schedule.results) == fails_at
        failure = failure_of(ErrorCode.TOOL_TIMEOUT, "late") if is_failure else None
        schedule = schedule.ended(StepResult(name, "infer", None if failure else TEXT, failure))
    assert len(started) == len(set(started))
    if not schedule.has_failed:
        assert set(started) == {one.name for one in steps}
    if is_linear:
        assert started == [one.name for one in steps][: len(started)]


def request(found, **fields):
    return Request("r", Mode.PLAN, (Message(Role.USER, "What now?"),), plan=found, **fields)


def path(outcome):
    return [transition.target for transition in outcome.transitions]


def test_without_a_plan_the_planner_is_asked_and_its_plan_checked():
    started = machine.start(request(None))
    assert path(started) == [State.INIT, State.PLAN]
    assert started.command == MakePlan()
    made = machine.step(started.run, Planned(plan(step("a")), TokenUsage(output_tokens=2)))
    assert path(made) == [State.PREPARE]
    assert made.run.usage.output_tokens == 2
    assert path(machine.step(started.run, Planned(plan(step("a", "dance")), TokenUsage()))) == [State.ERROR]


def test_the_static_planner_follows_what_the_request_asks_for():
    assert [one.kind for one in static_plan(request(None)).steps] == ["infer"]
    policy = ContextPolicy(Retriever.UNSPECIFIED, "docs", min_score=0.5)
    (retrieve, infer) = static_plan(request(None, context=policy, tools=("clock",))).steps
    assert retrieve.parameters == {"collection": "docs", "max_chunks": 0, "retriever": "bm25", "min_score": 0.5}
    assert infer.parameters == {"tools": ["clock"]}
    ranked = replace(policy, retriever=Retriever.KEYWORD, scorer="", top_k=2)
    found = static_plan(request(None, context=ranked))
    assert [one.kind for one in found.steps] == ["retrieve", "rerank", "infer"]
    assert found.steps[1].parameters == {"scorer": "", "top_k": 2, "min_score": 0.5}
    assert checked(found) is None


CLOCK = ToolDefinition("clock", "Tells the time.", '{"type":"object","properties":{"zone":{"type":"string"}}}')
NAMES = st.sampled_from(["a", "b", "c", "answer", "retrieve"])
WORDS = st.text(min_size=1, max_size=160)
STEPS = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"kind": st.just("infer"), "name": NAMES, "prompt": WORDS}, optional={"after": st.lists(NAMES, max_size=5)}
        ),
        st.fixed_dictionaries(
            {"kind": st.just("tool"), "name": NAMES, "tool": st.just("clock"), "arguments": st.just({"zone": "UTC"})}
        ),
        st.fixed_dictionaries({"kind": st.just("retrieve"), "name": NAMES, "query": WORDS}),
        st.fixed_dictionaries({"kind": st.just("validate"), "name": NAMES}),
    ),
    min_size=1,
    max_size=5,
)


@given(STEPS, st.booleans())
def test_whatever_the_model_plans_is_a_plan_that_can_run(steps, is_reranked):
    context = ContextPolicy(Retriever.BM25, "docs", scorer="bm25" if is_reranked else None)
    asked = request(None, context=context, output=OutputContract(schema_json='{"type":"object"}'), rules=(Rule("r"),))
    answer = json.dumps({"rationale": "why", "steps": steps})
    assert jsonschema_rs.is_valid(json.loads(plan_schema(asked, (CLOCK,), PlanPolicy())), json.loads(answer))
    found, failure = accept_plan(asked, planned(asked, answer), PlanPolicy())
    assert failure is None
    assert found.steps[-1].kind in ("infer", "validate")
    assert (found.trace.planner_id, found.trace.rationale) == ("model", "why")


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({}, {"infer"}),
        ({"context": ContextPolicy(Retriever.BM25, "docs")}, {"infer", "retrieve"}),
        ({"output": SCHEMA}, {"infer", "validate"}),
    ],
)
def test_a_model_can_only_plan_steps_that_the_request_has_a_use_for(fields, kinds):
    schema = json.loads(plan_schema(request(None, **fields), (), PlanPolicy()))
    offered = {one["properties"]["kind"]["const"] for one in schema["properties"]["steps"]["items"]["anyOf"]}
    assert offered == kinds


def test_a_model_can_only_plan_what_the_deployment_allows():
    bounds = PlanPolicy(max_steps=3, allowed_kinds=frozenset({"infer"}))
    asked = request(None, context=ContextPolicy(Retriever.BM25, "docs"))
    steps = json.loads(plan_schema(asked, (CLOCK,), bounds))["properties"]["steps"]
    assert len(steps["items"]["anyOf"]) == 1
    assert steps["maxItems"] == 1, "room is kept for retrieval and for the answer"
    text = planner_messages(asked, (CLOCK,), bounds)[0].content
    assert "retrieve" not in text
    assert "clock" not in text


def test_a_planners_answer_that_was_cut_off_is_malformed():
    with pytest.raises(Internal) as caught:
        planned(request(None), '{"rationale": "w')
    assert caught.value.code is ErrorCode.INFERENCE_MALFORMED_RESPONSE


def test_a_plan_goes_through_every_state():
    started = machine.start(request(plan(step("a"))))
    assert path(started) == [State.INIT, State.PLAN, State.PREPARE]
    prepared = machine.step(started.run, Prepared())
    assert path(prepared) == [State.EXECUTE]
    assert isinstance(prepared.command, RunPlan)
    ended = machine.step(prepared.run, PlanRan((StepResult("a", "infer", TEXT),)))
    assert path(ended) == [State.VALIDATE, State.COMPLETE]
    finish = ended.command
    assert finish.response.content == "t"
    assert [result.name for result in finish.response.step_results] == ["a"]


def test_rules_bind_only_a_final_step_that_can_be_checked():
    rules = (Rule("r", expression="true"),)
    for fields in ({"rules": rules}, {"semantic_intent": "be kind"}):
        assert path(machine.start(request(plan(step("a")), **fields)))[-1] is State.PREPARE
        failed = machine.start(request(plan(step("a"), step("b", "retrieve")), **fields))
        assert failed.command.response.failure.code is MISMATCH
    bound = machine.start(request(plan(step("a", "retrieve")), output=SCHEMA))
    assert bound.command.response.failure.code is REJECTED


def test_the_content_is_the_final_steps_whichever_ended_last():
    prepared = machine.step(machine.start(request(plan(step("c", "infer", "a"), step("a"), step("b")))).run, Prepared())
    texts = [StepResult(name, "infer", Value(ValueKind.TEXT, text=name)) for name in ("b", "a", "c")]
    finish = machine.step(prepared.run, PlanRan(tuple(texts))).command
    assert finish.response.content == "b"


def test_a_cancelled_plan_tells_what_its_steps_cost():
    prepared = machine.step(machine.start(request(plan(step("a"), step("b")))).run, Prepared())
    done = StepResult("a", "infer", TEXT, usage=TokenUsage(output_tokens=7))
    failure = failure_of(ErrorCode.CANCELLED_SIGNAL, "gone")
    finish = machine.step(prepared.run, Failed(failure, results=(done,))).command
    assert finish.response.usage.output_tokens == 7


def test_the_stored_conversation_comes_before_the_requests_own_messages():
    said = (Message(Role.USER, "before"), Message(Role.ASSISTANT, "yes"))
    own = (Message(Role.SYSTEM, "s"), Message(Role.USER, "now"))
    both = with_prepared(Request("r", Mode.PLAN, own), Prepared(history=said))
    assert [one.content for one in both.messages] == ["s", "before", "yes", "now"]


def test_a_rejected_plan_ends_in_plan_and_a_failed_step_returns_what_was_done():
    rejected = machine.start(request(plan(step("a", "dance"))))
    assert path(rejected) == [State.INIT, State.PLAN, State.ERROR]
    prepared = machine.step(machine.start(request(plan(step("a"), step("b")))).run, Prepared())
    failure = failure_of(ErrorCode.TOOL_TIMEOUT, "late")
    results = (StepResult("a", "infer", TEXT), StepResult("b", "infer", failure=failure))
    ended = machine.step(prepared.run, PlanRan(results))
    assert path(ended) == [State.ERROR]
    finish = ended.command
    assert finish.response.failure == failure
    assert finish.response.step_results == results


def messages(found, inputs=None, **fields):
    return [(one.role.value, one.content) for one in messages_of(found, request(plan(found), **fields), inputs or {})]


def test_an_infer_step_sees_the_request_its_input_or_what_it_waits_for():
    assert messages(step("a")) == [("user", "What now?")]
    assert messages(step("a", parameters={"prompt": "Be short."})) == [("user", "What now?\n\nBe short.")]
    assert messages(step("a", input=TEXT, parameters={"prompt": "Say it."})) == [("user", "t\n\nSay it.")]
    two = {"x": TEXT, "y": Value(ValueKind.RAW_JSON, text="{}")}
    assert messages(step("a"), two) == [("user", "## x\nt\n\n## y\n{}")]
    context = Value(ValueKind.CONTEXT)
    assert messages(step("a"), {"x": context}) == [("user", f"{FENCED_HEADING}\n\n```\n\n```\n\nWhat now?")]


def test_a_tool_step_takes_its_arguments_from_parameters_or_input():
    def arguments(text, **parameters):
        return arguments_of(step("a", "tool", parameters={"tool": "t", **parameters}), Value(ValueKind.TEXT, text=text))

    assert arguments("x", arguments={"a": 1}) == '{"a":1}'
    assert arguments("x", argument="q", arguments={"a": 1}) == '{"a":1,"q":"x"}'
    assert arguments('{"b": 2}') == '{"b":2}'
    assert arguments("no JSON") is None
    assert arguments("[1]") is None


def test_every_kind_has_its_parameters_and_pairings():
    assert set(RULES) == set(StepKind)


@pytest.mark.parametrize("timeout_s", [-5.0, 9.2e18, float("nan")])
def test_a_timeout_that_no_clock_has_is_rejected(timeout_s):
    bounds = {"timeout_per_step_s": 60.0}
    for found in (plan(step("a", timeout_s=timeout_s)), plan(step("a"), timeout_per_step_s=timeout_s)):
        for failure in (checked(found), checked(found, **bounds)):
            assert failure.code is REJECTED
            assert "it must be positive and at most" in failure.message


@pytest.mark.parametrize(
    ("asked", "own"), [(RetryPolicy(2, 60.0), {}), (RetryPolicy(), {"retry": RetryPolicy(2, 60.0)})]
)
def test_a_step_whose_number_of_retries_makes_its_waits_too_long_is_rejected(asked, own):
    found = plan(step("a", max_retries=6, **own))
    _, failure = accept_plan(request(found, retry=asked), found, PlanPolicy())
    assert failure.code is REJECTED
    assert "step 'a' has an invalid retry policy: backoff comes to 360 s over 6 retries" in failure.message
    found = plan(step("a", max_retries=5, **own))
    assert accept_plan(request(found, retry=asked), found, PlanPolicy())[1] is None
