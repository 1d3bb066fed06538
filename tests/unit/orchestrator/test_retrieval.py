import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import ErrorCode, failure_of
from pagantic_common.domain.messages import Message, Role
from pagantic_common.domain.validation import Enforcement, Guarantee
from services.orchestrator.core.conversation.grounding import retrieval_confidence
from services.orchestrator.core.conversation.prompt import Prepared
from services.orchestrator.core.model.contract import OutputContract, Rule
from services.orchestrator.core.model.plan import Plan, Step, StepResult, Value, ValueKind
from services.orchestrator.core.model.request import Mode, Request
from services.orchestrator.core.model.response import FinishReason, InferenceOutput
from services.orchestrator.core.turn import machine
from services.orchestrator.core.turn.answering import Enforced, Inferred
from services.orchestrator.core.turn.ending import Failed
from services.orchestrator.core.turn.plan_steps import PlanRan

SAID = Inferred(InferenceOutput("ok", FinishReason.STOP))
VALID = Enforced(Enforcement(valid=True, output="{}", structured_output_json="{}", guarantee=Guarantee.VALIDATED))


def chunk(content="", score=0.0, kind="bm25"):
    return Chunk("1", content, "s", score, kind)


def context_of(*chunks):
    return Value(ValueKind.CONTEXT, chunks=chunks)


def response_of(work, *inputs):
    outcome = machine.start(work)
    for happened in inputs:
        outcome = machine.step(outcome.run, happened)
    return outcome.command.response


def request(mode=Mode.CHAT, text="red hat", **fields):
    return Request(request_id="r", mode=mode, messages=(Message(Role.USER, text),), **fields)


@pytest.mark.parametrize(
    ("chunks", "confidence"),
    [
        ([], None),
        ([chunk(score=0.5, kind="keyword"), chunk(score=1.0, kind="keyword")], 0.75),
        ([chunk("a red hat", 7.5)], 1.0),
        ([chunk("RED shoes", 7.5), chunk("blue", 0.1)], 0.5),
        ([chunk("nothing", 0.9, "cosine")], 0.0),
        ([chunk("red", 0.03, "rrf")], 0.5),
        ([chunk("red", 1.0, "keyword"), chunk("x", 3.0, "bm25")], 0.5),
    ],
)
def test_fractions_are_averaged_and_of_other_scores_the_terms_found_count(chunks, confidence):
    assert retrieval_confidence("red hat", chunks) == confidence


@given(st.text(), st.lists(st.builds(chunk, st.text(), st.floats(-2, 2), st.sampled_from(["keyword", "bm25", ""]))))
def test_a_confidence_is_a_fraction_and_there_is_none_without_chunks(query, chunks):
    confidence = retrieval_confidence(query, chunks)
    assert (confidence is None) == (not chunks)
    assert confidence is None or 0 <= confidence <= 1


def test_an_answer_without_another_confidence_has_that_of_its_context():
    prepared = Prepared(retrieval_confidence=0.25)
    response = response_of(request(), prepared, SAID)
    assert (response.confidence, response.confidence_source) == (0.25, "RETRIEVAL")
    response = response_of(request(), Prepared(retrieval_confidence=0.0), SAID)
    assert (response.confidence, response.confidence_source) == (0.0, "RETRIEVAL")
    assert response_of(request(), Prepared(), SAID).confidence is None
    with_output = request(output=OutputContract(schema_json="{}"))
    assert response_of(with_output, prepared, SAID, VALID).confidence_source == "RETRIEVAL"


def test_validation_comes_before_retrieval_and_a_failure_has_no_confidence_of_retrieval():
    prepared = Prepared(retrieval_confidence=0.25)
    ruled = response_of(request(rules=(Rule("short", "true"),)), prepared, SAID, VALID)
    assert (ruled.confidence, ruled.confidence_source) == (1.0, "VALIDATION")
    failed = response_of(request(), prepared, Failed(failure_of(ErrorCode.INFERENCE_ENGINE_ERROR, "x")))
    assert (failed.confidence, failed.confidence_source) == (None, "UNSPECIFIED")


def test_a_plan_has_the_confidence_of_what_its_steps_found_after_reranking():
    plan = Plan((Step("find", "retrieve", {"collection": "c"}), Step("order", "rerank"), Step("say", "infer")))
    found = StepResult("find", "retrieve", context_of(chunk("hat", 0.1, "keyword")))
    ordered = StepResult("order", "rerank", context_of(chunk("hat", 0.5, "keyword"), chunk("red", 1.0, "keyword")))
    said = StepResult("say", "infer", Value(ValueKind.TEXT, text="ok"))
    response = response_of(request(Mode.PLAN, plan=plan), Prepared(), PlanRan((found, ordered, said)))
    assert (response.confidence, response.confidence_source) == (0.75, "RETRIEVAL")
    plan = Plan((Step("find", "retrieve", {"collection": "c"}), Step("say", "infer")))
    response = response_of(request(Mode.PLAN, plan=plan), Prepared(), PlanRan((found, said)))
    assert response.confidence == 0.1
    assert response_of(request(Mode.PLAN, plan=plan), Prepared(), PlanRan((said,))).confidence is None
