"""Chunks of a remote engine as the events of an inference; the numbers are those of the invariants."""

import json
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.errors import ErrorCode, Internal
from pagantic_common.domain.ids import is_id
from services.inference.core.generation import CandidateEnd, Completed, Delta, FinishReason
from services.inference.core.remote.answers import MAX_CALLS, CallPiece, ChoicePiece, Chunk, Counts, RemoteAnswers

TOOLS = ("stock", "mail")
PIECES = st.builds(
    ChoicePiece,
    index=st.integers(-1, 3),
    content=st.text(max_size=3),
    reasoning=st.text(max_size=2),
    calls=st.lists(
        st.builds(
            CallPiece,
            index=st.integers(-1, 2),
            id=st.sampled_from(["", "a", "b", "no id"]),
            name=st.sampled_from(["", "stock", "mail", "other"]),
            arguments=st.sampled_from(["", "{}", '{"a"', ":1}", "[", " "]),
        ),
        max_size=2,
    ).map(tuple),
    finish_reason=st.sampled_from(["", "", "", "", "stop", "length", "tool_calls", "filter"]),
)
CHUNKS = st.lists(st.builds(Chunk, choices=st.lists(PIECES, max_size=3).map(tuple)), max_size=20)


def answers_of(candidates=1, names=TOOLS, *, is_enforced=False):
    numbers = count()
    return RemoteAnswers(candidates, names, is_enforced=is_enforced, new_call_id=lambda: f"made_{next(numbers)}")


def run(answers, chunks):
    """Return the events of chunks, and the error that ended them."""
    events = []
    try:
        for chunk in chunks:
            events.extend(answers.feed(chunk))
        events.extend(answers.finish(prompt_tokens=5, window=100, decode_seconds=1.0))
    except Internal as error:
        return events, error
    return events, None


def piece(*calls, index=0, **fields):
    return Chunk((ChoicePiece(index, calls=calls, **fields),))


@given(CHUNKS, st.integers(1, 3), st.booleans())
def test_the_invariants_hold_for_whatever_an_engine_sends(chunks, candidates, is_enforced):
    events, error = run(answers_of(candidates, is_enforced=is_enforced), chunks)
    if error is not None:
        assert error.code in (ErrorCode.INFERENCE_MALFORMED_RESPONSE, ErrorCode.INFERENCE_ENGINE_ERROR)
    ended, arguments, names = set(), {}, {}
    for event in events:
        if isinstance(event, Delta):
            assert event.candidate_index not in ended  # 1
            for call in event.tool_calls:
                key = (event.candidate_index, call.index)
                arguments[key] = arguments.get(key, "") + call.arguments_json
                if call.name:
                    assert key not in names
                    names[key] = call.name
        if isinstance(event, CandidateEnd):
            assert event.candidate_index not in ended
            ended.add(event.candidate_index)
            assert not event.constraint_satisfied  # 5
            ids = [call.id for call in event.tool_calls]
            assert len(set(ids)) == len(ids)  # 3
            streamed = {text for (index, _), text in arguments.items() if index == event.candidate_index}
            for call in event.tool_calls:
                assert is_id(call.id)  # 3
                assert call.name in TOOLS
                assert isinstance(json.loads(call.arguments_json), dict)
                assert call.arguments_json in streamed  # 2
    if error is None:
        assert ended == set(range(candidates))  # 4
        assert isinstance(events[-1], Completed)


@given(st.lists(st.text(min_size=1, max_size=4), max_size=10))
def test_the_text_of_an_answer_is_that_of_its_pieces(texts):
    chunks = [piece(content=text) for text in texts] + [piece(finish_reason="stop")]
    events, error = run(answers_of(), chunks)
    assert error is None
    assert "".join(event.content for event in events if isinstance(event, Delta)) == "".join(texts)
    assert events[-1].usage.output_tokens == len(texts)


def test_calls_that_share_an_index_are_told_apart_by_their_ids():
    calls = [CallPiece(0, "a", "stock", "{}"), CallPiece(0, "b", "mail", '{"to":1}')]
    events, error = run(answers_of(), [piece(call) for call in calls] + [piece(finish_reason="stop")])
    assert error is None
    (end,) = [event for event in events if isinstance(event, CandidateEnd)]
    assert [(call.id, call.name) for call in end.tool_calls] == [("a", "stock"), ("b", "mail")]
    assert end.finish_reason is FinishReason.TOOL


def test_an_id_that_repeats_is_replaced():
    calls = [CallPiece(0, "a", "stock", "{}"), CallPiece(1, "a", "mail", "{}")]
    events, _ = run(answers_of(), [piece(*calls), piece(finish_reason="tool_calls")])
    (end,) = [event for event in events if isinstance(event, CandidateEnd)]
    assert [call.id for call in end.tool_calls] == ["a", "made_0"]


def test_a_call_that_a_limit_cut_is_left_out_of_the_end():
    events, error = run(answers_of(), [piece(CallPiece(0, "a", "stock", '{"a"')), piece(finish_reason="length")])
    assert error is None
    (end,) = [event for event in events if isinstance(event, CandidateEnd)]
    assert (end.finish_reason, end.tool_calls) == (FinishReason.LENGTH, ())


def test_calls_without_end_are_malformed():
    calls = [piece(CallPiece(number, f"c{number}", "stock", "{}")) for number in range(MAX_CALLS + 1)]
    _, error = run(answers_of(), calls)
    assert "more than 128 tool calls" in str(error)


def test_counts_of_one_candidate_alone_are_not_those_of_all():
    chunks = [piece(content="a", index=index) for index in (0, 1, 1)]
    chunks += [piece(finish_reason="stop", index=index) for index in (0, 1)]
    chunks.append(Chunk(counts=Counts(prompt_tokens=9, output_tokens=1, cached_prompt_tokens=20)))
    events, _ = run(answers_of(2), chunks)
    usage = events[-1].usage
    assert (usage.output_tokens, usage.prompt_tokens, usage.cached_prompt_tokens) == (3, 9, 9)
    assert usage.context_tokens == 9 + 2


def test_a_cancelled_candidate_ends_with_the_next_chunk_and_says_no_more():
    answers = answers_of(2)
    answers.cancel(1)
    events = list(answers.feed(piece(content="x", index=1)))
    assert events == [CandidateEnd(1, FinishReason.CANCELLED, 0)]
    assert not answers.are_cancelled
    answers.cancel(0)
    list(answers.feed(Chunk()))
    assert answers.are_cancelled
    assert answers.have_ended
