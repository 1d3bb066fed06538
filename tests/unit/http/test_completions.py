"""`/v1/completions`: its requests as those of the orchestrator, and the answers and chunks that responses become."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.openai.answers import Heading
from gateway.http.openai.choices import as_choice
from gateway.http.openai.completions.answers import ContinuationChunks, ContinuationHead, logprobs_of
from gateway.http.openai.completions.requests import CompletionForm, completion_requests_of
from gateway.http.openai.forms import read_form
from pagantic.common.v1 import error_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import Aborted, InvalidRequest, PaganticError
from tests.unit.http.test_chunks import completed, content, discarded, failed
from tests.unit.http.test_requests import JSON_VALUES

TEXT = "Once upon a time"
HEADING = Heading("cmpl-1", "m", 7)
LENGTH = generation_pb2.FINISH_REASON_LENGTH


def requests(prompt=TEXT, **fields):
    return completion_requests_of(read_form({"prompt": prompt, **fields}, CompletionForm), "alias", 60.0)


def only(**fields):
    [request] = requests(**fields)
    return request


def chunks_of(*events, echo=""):
    chunks = ContinuationChunks(ContinuationHead(HEADING, [echo], ["user"]), 0)
    return [*chunks.first(), *(chunk for event in events for chunk in chunks.of(event))]


def text_in(chunks):
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


def token(piece, logprob=-1.0, top=()):
    return generation_pb2.TokenLogprob(piece=piece, logprob=logprob, top=top)


def test_a_prompt_is_a_raw_text_with_the_limit_of_the_document():
    request = only()
    assert (request.mode, request.text_prompt, request.messages) == (execution_pb2.MODE_CHAT, TEXT, [])
    assert (request.hints.max_tokens, request.hints.model, request.hints.timeout.seconds) == (16, "alias", 60)
    assert not request.hints.HasField("tool_choice")
    assert not request.hints.HasField("top_logprobs")


def test_sampling_and_limits_are_hints():
    hints = only(
        max_tokens=5, temperature=0, top_p=0.5, seed=-1, stop="\n", logprobs=0, logit_bias={"3": 1, "foo": 0}
    ).hints
    assert (hints.max_tokens, hints.temperature, hints.top_p, hints.seed) == (5, 0, 0.5, (1 << 64) - 1)
    assert (list(hints.stop), hints.top_logprobs, dict(hints.logit_bias)) == (["\n"], 0, {3: 1})
    assert only(pagantic={"hints": {"max_tokens": 40}}).hints.max_tokens == 40


def test_each_text_of_a_list_is_a_request():
    assert [one.text_prompt for one in requests(["a", "b"], n=2)] == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": None}, "^prompt is missing, or has an empty text: send the text to continue"),
        ({"prompt": ""}, "^prompt is missing"),
        ({"prompt": []}, "^prompt is missing"),
        ({"prompt": ["a", ""]}, "^prompt is missing, or has an empty text"),
        ({"prompt": [1, 2]}, r"^prompt\[0\] is no text: send texts, because each model has token ids of its own"),
        ({"prompt": [[1, 2]]}, r"^prompt\[0\] is no text"),
        ({"prompt": {"a": "b"}}, "^prompt: "),
        ({"prompt": {}}, "^prompt is missing, or has an empty text"),
        ({"prompt": ["a"] * 3, "n": 3}, "^3 prompts with n 3 ask for 9 answers, at most 8 are given"),
        ({"n": 9}, "^n: "),
        ({"max_tokens": 0}, "^max_tokens: "),
        ({"logprobs": 21}, "^logprobs: "),
        ({"suffix": "}"}, "^suffix is set: .*leave suffix out"),
        ({"echo": True, "logprobs": 0}, "^echo and logprobs are both set: .*leave one of them out"),
        ({"best_of": 2}, "^best_of is 2 and n is 1: .*leave best_of out"),
        ({"pagantic": {"messages": [{"content": "x"}]}}, "^pagantic.messages is set"),
        ({"pagantic": {"textPrompt": "x"}}, "^pagantic.text_prompt is set"),
        ({"pagantic": {"text_prompt": "a"}}, "^pagantic.text_prompt is set"),
    ],
)
def test_a_request_that_cannot_be_done_is_refused_by_its_field(fields, words):
    with pytest.raises(InvalidRequest, match=words):
        requests(**{"prompt": TEXT, **fields})


@pytest.mark.parametrize("fields", [{"best_of": 0}, {"best_of": 2, "n": 2}, {"suffix": ""}, {"echo": True}])
def test_fields_that_change_nothing_are_taken(fields):
    assert only(**fields).text_prompt == TEXT


@given(st.dictionaries(st.sampled_from(sorted(CompletionForm.model_fields)), JSON_VALUES))
def test_any_object_is_requests_or_refused(fields):
    try:
        found = completion_requests_of(read_form(fields, CompletionForm), "", 60.0)
    except InvalidRequest:
        return
    assert 1 <= len(found) <= 8
    assert all(one.text_prompt and one.hints.max_tokens > 0 for one in found)


@pytest.mark.parametrize(("number", "seed"), [(0, 5), (1, 6)])
def test_the_answers_of_one_prompt_differ_in_their_seeds(number, seed):
    choice = as_choice(only(seed=5), "r", index=3, number=number)
    assert (choice.request_id, choice.hints.seed, choice.text_prompt) == ("r.4", seed, TEXT)


def test_a_whole_answer_has_a_choice_for_each_response():
    responses = [
        execution_pb2.SystemResponse(request_id="r", content=" there"),
        execution_pb2.SystemResponse(request_id="r.2", content=" was", finish_reason=LENGTH),
    ]
    told = ContinuationHead(HEADING, ["", TEXT], ["user"]).whole(responses)
    assert (told["id"], told["object"], told["model"], told["created"]) == ("cmpl-1", "text_completion", "m", 7)
    assert told["choices"] == [
        {"index": 0, "text": " there", "logprobs": None, "finish_reason": "stop"},
        {"index": 1, "text": TEXT + " was", "logprobs": None, "finish_reason": "length"},
    ]
    assert told["usage"]["total_tokens"] == 0
    assert told["pagantic"] == {"request_id": "r", "request_ids": ["r", "r.2"], "ignored": ["user"]}


def test_chunks_have_the_texts_as_they_come_and_the_last_one_the_reason():
    *texts, last = chunks_of(content("a"), content("b"), completed(content="ab"), echo=TEXT)
    assert [chunk["choices"][0]["text"] for chunk in texts] == [TEXT, "a", "b"]
    assert {chunk["object"] for chunk in (*texts, last)} == {"text_completion"}
    assert {chunk["choices"][0]["finish_reason"] for chunk in texts} == {None}
    assert last["choices"][0] == {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}
    assert last["pagantic"]["ignored"] == ["user"]


@pytest.mark.parametrize(
    "end", [completed(content="a", finish_reason=LENGTH), failed(error_pb2.ERROR_CODE_INFERENCE_OUTPUT_TRUNCATED)]
)
def test_a_text_that_a_limit_cut_ends_with_the_reason_length(end):
    assert chunks_of(content("a"), end)[-1]["choices"][0]["finish_reason"] == "length"


def test_a_failure_and_a_discarded_attempt_are_raised():
    with pytest.raises(PaganticError, match="it is broken"):
        chunks_of(failed(error_pb2.ERROR_CODE_INFERENCE_ENGINE_ERROR))
    with pytest.raises(Aborted):
        chunks_of(content("a"), discarded())
    assert text_in(chunks_of(discarded(), content("b"), completed(content="b"), echo=TEXT)) == TEXT + "b"


@given(st.lists(st.text(max_size=3)), st.booleans(), st.sampled_from(["", TEXT]))
def test_the_chunks_of_any_answer_join_to_the_whole(pieces, streams, echo):
    text = "".join(pieces)
    deltas = [content(piece) for piece in pieces] if streams else []
    whole = ContinuationHead(HEADING, [echo], []).whole([execution_pb2.SystemResponse(content=text)])
    assert text_in(chunks_of(*deltas, completed(content=text), echo=echo)) == whole["choices"][0]["text"]


def test_log_probabilities_are_lists_of_one_length():
    tokens = [token(b"a", -0.5, [token(b"a", -0.5), token(b"b", -2.0)]), token(b"c", -1.0)]
    assert logprobs_of(tokens) == {
        "tokens": ["a", "c"],
        "token_logprobs": [-0.5, -1.0],
        "top_logprobs": [{"a": -0.5, "b": -2.0}, {"c": -1.0}],
        "text_offset": [0, 1],
    }
    assert logprobs_of([]) is None


@given(st.text(max_size=12), st.lists(st.integers(0, 48), max_size=6))
def test_offsets_count_whole_characters_however_the_text_is_cut_into_tokens(text, cuts):
    data = text.encode()
    ends = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in itertools.pairwise(ends)]
    told = logprobs_of([token(piece) for piece in pieces])
    if told is None:
        assert not text
        return
    expected = [len(data[:start].decode(errors="ignore")) for start in ends[:-1]]
    assert told["text_offset"] == expected
