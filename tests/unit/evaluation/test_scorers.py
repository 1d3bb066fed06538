"""Scorers without a service: texts, numbers, schemas, tool calls, documents and measures."""

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import Qrel, R, ScoredDoc, calc_aggregate, nDCG
from pydantic import TypeAdapter, ValidationError

from gateway.evaluation.scoring.answer import MISSING, answer_of, answer_of_response
from gateway.evaluation.scoring.retrieval import documents_of
from gateway.evaluation.scoring.scorer import Expectation, ExpectedCall, Subject, same_json, score_of
from gateway.evaluation.scoring.scorers import Scorers
from pagantic.common.v1 import chunk_pb2, error_pb2, message_pb2, usage_pb2
from pagantic.orchestrator.v1 import decision_pb2, event_pb2, execution_pb2
from pagantic_common.client import AnswerState

SCORERS = TypeAdapter(Scorers)
POLARITY = {"label": {"labels": ["positive", "negative"]}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


def scorer(written):
    return SCORERS.validate_python([written])[0]


def subject(response, request=None, **expectation):
    if isinstance(response, str):
        response = execution_pb2.SystemResponse(content=response)
    request = request or execution_pb2.SystemRequest()
    return Subject(Expectation("question", **expectation), request, answer_of_response(response), client=None)


async def value(written, response, **expectation):
    return (await score_of(scorer(written), subject(response, **expectation))).value


@pytest.mark.parametrize(
    ("written", "answer", "expected", "score"),
    [
        ("exact", " red\n", "red", 1),
        ("exact", "Red", "red", 0),
        ({"exact": {"ignore_case": True}}, "Red", "red", 1),
        ("exact", '{"a": 1.0, "b": [true]}', {"b": [True], "a": 1}, 1),
        ("exact", '{"a": true}', {"a": 1}, 0),
        ("exact", "not JSON", {"a": 1}, 0),
        ("exact", "null", None, 1),
        ("exact", "no JSON", None, 0),
        ({"exact": {"pointer": "/a/1"}}, '{"a": ["x", "y"]}', "y", 1),
        ({"exact": {"pointer": "/a/2"}}, '{"a": ["x", "y"]}', "y", 0),
        ({"exact": {"pointer": "/a~1b/~0"}}, '{"a/b": {"~": 3}}', 3, 1),
        ({"exact": {"pointer": "/a"}}, '{"b": ""}', "", 0),
        (POLARITY, "Answer: Positive.", "positive", 1),
        (POLARITY, "It is not negative, but positive", "positive", 1),
        (POLARITY, "It is not negative, but positive", "negative", 0),
        (POLARITY, "positively", "positive", 0),
        (POLARITY, "no opinion", "positive", 0),
        ({"label": {"labels": ["yes", "no"], "which": "first"}}, "No. Or yes?", "no", 1),
        ({"label": {"labels": ["new", "new york"]}}, "in New York", "new york", 1),
        ({"label": {"labels": ["c", "c++"], "pointer": "/in"}}, '{"in": "C++"}', "c++", 1),
        ("regex", "the year 1999", r"\b\d{4}$", 1),
        ({"regex": {"pattern": "^a+$"}}, "aaa", "ignored", 1),
        ({"regex": {"pattern": "a+", "full": True}}, "aab", "ignored", 0),
        ({"regex": {"pattern": "sorry", "absent": True}}, "here you are", "ignored", 1),
        ({"regex": {"pattern": "sorry", "absent": True}}, "I am sorry", "ignored", 0),
        ("numeric", "Of 12 apples there are 1,391.5 left", 1391.5, 1),
        ("numeric", "3 of 12", "12", 1),
        ({"numeric": {"which": "first"}}, "3 of 12", 3, 1),
        ({"numeric": {"tolerance": 0.5}}, "about -2.4e1", -23.6, 1),
        ({"numeric": {"relative_tolerance": 0.01}}, "101", 100, 1),
        ({"numeric": {"relative_tolerance": 0.01}}, "102", 100, 0),
        ("numeric", "none", 1, 0),
        ("numeric", "9e999", 1, 0),
        ({"schema": {"schema": {"type": "array"}}}, "[1]", "ignored", 1),
        ({"schema": {"schema": {"type": "array"}}}, "{}", "ignored", 0),
        ({"schema": {"schema": {"type": "array"}}}, "[1", "ignored", 0),
        ({"schema": {"schema": {"type": "string"}, "pointer": "/a"}}, '{"a": "b"}', "ignored", 1),
    ],
)
async def test_texts_and_values(written, answer, expected, score):
    assert await value(written, answer, expected=expected) == score


async def test_the_schema_of_the_request_serves_too_and_violations_are_noted():
    request = execution_pb2.SystemRequest()
    request.output.schema_json = '{"type": "object", "required": ["a"]}'
    score = await score_of(scorer("schema"), subject("{}", request))
    assert (score.value, "a" in score.note) == (0, True)
    assert (await score_of(scorer("schema"), subject('{"a": 1}', request))).value == 1
    assert (await score_of(scorer("schema"), subject("{}"))).value is None


async def test_an_expression_that_backtracks_takes_no_time():
    assert await value({"regex": {"pattern": "(a*)*b"}}, "a" * 200_000) == 0


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("exakt", "exakt"),
        ({"exact": {"ignore": True}}, "ignore"),
        ({"regex": {"pattern": "(?=a)"}}, "is not a regular expression of RE2"),
        ({"schema": {"schema": {"type": "strin"}}}, "the schema is not valid"),
        ({"schema": {"schema": {"$ref": "https://example.org/x"}}}, "remote"),
        ({"numeric": {"tolerance": -1}}, "greater than or equal to 0"),
        ({"numeric": {"tolerance": float("nan")}}, "finite"),
        ({"judge": {"levels": ["one"]}}, "at least 2"),
        ({"label": {"labels": ["yes"]}}, "at least 2"),
        ({"label": {"labels": ["yes", ""]}}, "at least 1"),
        ({"exact": {"name": "a b"}}, "pattern"),
        ({"exact": {"pointer": "a"}}, "pattern"),
        ({"ndcg": {"k": 0}}, "greater than or equal to 1"),
        ({"cost": {"prompt": 1}}, "output"),
        (3, "valid"),
    ],
)
def test_a_wrong_scorer_is_refused_with_the_reason(written, reason):
    with pytest.raises(ValidationError, match=re.escape(reason)):
        scorer(written)


@given(JSON, JSON)
def test_equal_values_are_those_that_json_cannot_tell_apart(one, other):
    assert same_json(one, one)
    assert same_json(one, other) is same_json(other, one)
    if not same_json(one, other):
        assert repr(one) != repr(other)


def test_true_is_no_number():
    assert not same_json(True, 1)
    assert not same_json([0], [False])
    assert same_json({"a": 1}, {"a": 1.0})


def called(*names, client=()):
    made = [execution_pb2.ToolCallRecord(name=name, arguments_json=arguments) for name, arguments in names]
    asked = [message_pb2.ToolCall(name=name, arguments_json="{}") for name in client]
    return execution_pb2.SystemResponse(tool_calls_made=made, tool_calls=asked)


def calls(*names):
    return [ExpectedCall(name=name) if isinstance(name, str) else ExpectedCall(**name) for name in names]


MADE = called(("find", '{"q": "lamp", "n": 3}'), ("stock", '{"id": 7}'), ("find", '{"q": "chair"}'))


@pytest.mark.parametrize(
    ("options", "expected", "score"),
    [
        ({}, calls("find", "stock"), 1),
        ({}, calls("stock", "find", "find"), 2 / 3),
        ({"match": "any_order"}, calls("stock", "find", "find"), 1),
        ({"match": "any_order"}, calls("stock", "stock"), 1 / 2),
        ({"match": "exact"}, calls("find", "stock", "find"), 1),
        ({"match": "exact"}, calls("find", "stock"), 0),
        ({}, calls({"name": "find", "arguments": {"q": "lamp"}}), 1),
        ({"whole_arguments": True}, calls({"name": "find", "arguments": {"q": "lamp"}}), 0),
        ({"whole_arguments": True}, calls({"name": "find", "arguments": {"q": "chair"}}), 1),
        ({}, calls({"name": "stock", "arguments": {"id": True}}), 0),
        ({"match": "any_order"}, calls("find", {"name": "find", "arguments": {"q": "lamp"}}), 1),
        ({}, [], 0),
    ],
)
async def test_tool_calls(options, expected, score):
    assert await value({"trajectory": options}, MADE, tools=expected) == pytest.approx(score)


async def test_no_call_is_what_an_empty_list_expects_and_client_tools_count():
    assert await value("trajectory", "hello", tools=[]) == 1
    assert await value("trajectory", called(client=["mail"]), tools=calls("mail")) == 1
    assert await value("trajectory", "hello", tools=calls("mail")) == 0


NAMES = st.sampled_from("abc")


@given(st.lists(NAMES, max_size=6), st.lists(NAMES, min_size=1, max_size=6))
def test_an_order_is_never_matched_better_than_no_order(made, expected):
    answer = subject(called(*[(name, "{}") for name in made]), tools=calls(*expected))
    in_order, any_order, exact = (
        asyncio.run(scorer({"trajectory": {"match": match}}).score(answer)).value
        for match in ("in_order", "any_order", "exact")
    )
    assert 0 <= exact <= in_order <= any_order <= 1
    assert (exact == 1) is (made == expected)
    common = sum(min(made.count(name), expected.count(name)) for name in set(expected))
    assert any_order == pytest.approx(common / len(expected))


GRADES = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 4), min_size=1)


@given(st.permutations("abcdefgh"), st.integers(0, 8), GRADES, st.integers(1, 9))
def test_ranks_are_scored_as_ir_measures_does(order, found, grades, k):
    ranked = order[:found]
    run = [ScoredDoc("q", document, float(-rank)) for rank, document in enumerate(ranked)]
    judged = [Qrel("q", document, grade) for document, grade in grades.items()]
    theirs = calc_aggregate([nDCG @ k, R @ k], judged, run or [ScoredDoc("q", "none", 0.0)])
    for name, measure in (("ndcg", nDCG @ k), ("recall", R @ k)):
        mine = scorer({name: {"k": k}})
        assert mine.value_of(ranked[: mine.k], grades) == pytest.approx(theirs[measure])


def test_a_document_stands_at_its_best_chunk():
    chunks = [chunk_pb2.Chunk(source=source) for source in "baabc"]
    assert documents_of(chunks) == ["b", "a", "c"]


async def test_the_chunks_of_a_plan_are_scored_and_its_quotes_looked_up():
    response = execution_pb2.SystemResponse()
    result = response.step_results.add(name="find")
    result.output.context.chunks.add(source="d1", content="Ships follow the light.")
    result.output.context.chunks.add(source="d2", content="A lamp.")
    response.citations.add(document="d1", quote="follow the light")
    response.citations.add(document="d2", quote="follow the light")
    assert await value({"recall": {"k": 1}}, response, relevant={"d1": 1.0, "d2": 2.0}) == 0.5
    assert await value("quotes", response) == 0.5
    assert await value("quotes", "no citations") == 0


async def test_measures_have_units_and_count_failed_cases_too():
    response = execution_pb2.SystemResponse(
        token_usage=usage_pb2.TokenUsage(prompt_tokens=1000, cached_prompt_tokens=400, output_tokens=100),
        error=error_pb2.SystemError(code=error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED, message="cut"),
    )
    assert await value({"cost": {"prompt": 2, "output": 10, "cached_prompt": 1}}, response) == pytest.approx(0.0026)
    assert await value({"cost": {"prompt": 2, "output": 10}}, response) == pytest.approx(0.003)
    assert await value("tokens", response) == 1100
    failed = await score_of(scorer("exact"), subject(response, expected=""))
    assert (failed.value, failed.note) == (0, "the case failed: INFERENCE_OUTPUT_TRUNCATED")


def test_an_answer_has_the_model_and_the_time_of_its_execution():
    start = event_pb2.ExecutionEvent(inference_end=event_pb2.InferenceEnd(model="small"))
    end = event_pb2.ExecutionEvent(completed=event_pb2.Completed(response=execution_pb2.SystemResponse(content="hi")))
    end.duration.FromMilliseconds(1500)
    answer = answer_of(AnswerState.of([start, end]))
    assert (answer.text, answer.value, answer.model, answer.latency_s) == ("hi", MISSING, "small", 1.5)


def test_decisions_are_values():
    response = execution_pb2.SystemResponse()
    response.decisions.add(predicate=decision_pb2.PredicateAnswer(probability=0.7))
    assert answer_of_response(response).value is True
    response.decisions.add(choice=decision_pb2.ChoiceAnswer(index=2))
    response.decisions.add(score=decision_pb2.ScoreAnswer(score=1.5))
    assert answer_of_response(response).value == [True, 2, 1.5]
