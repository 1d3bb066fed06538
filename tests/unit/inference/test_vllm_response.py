"""Responses of vLLM's protocol: whatever the events, the messages agree with each other."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagantic_common.domain.messages import ModelInfo
from pagantic_common.domain.usage import TokenUsage
from services.inference.app.workload import Load
from services.inference.core.generation import CandidateEnd, Completed, Delta, FinishReason, Started, TokenLogprob
from services.inference.vllm.response import ResponseEncoder, load_to_proto

STARTED = Started(ModelInfo("m", 100), prompt_tokens=9, cached_prompt_tokens=4, seed=1)
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
DELTAS = st.lists(st.tuples(st.integers(0, 2), TOKENS), max_size=12)


def logprob_of(token):
    return TokenLogprob(token, b"", -1.0, (TokenLogprob(7, b"", -0.5),))


def delta(index, tokens):
    return Delta(index, tokens=tokens, logprobs=tuple(map(logprob_of, tokens)))


def messages(events, *, streams, candidate_count=3):
    encoder = ResponseEncoder(candidate_count=candidate_count, streams=streams)
    responses = list(chain.from_iterable(map(encoder.encode, events)))
    return [one.chunk for one in responses if one.HasField("chunk")], [
        one.complete for one in responses if one.HasField("complete")
    ]


@given(DELTAS, st.booleans())
def test_chunks_and_last_messages_say_the_same(deltas, streams):
    tokens = {index: [token for of, part in deltas if of == index for token in part] for index in range(3)}
    events = [
        STARTED,
        *(delta(index, part) for index, part in deltas),
        *(CandidateEnd(index, FinishReason.STOP, len(tokens[index])) for index in range(3)),
        Completed(TokenUsage()),
    ]
    chunks, completes = messages(events, streams=streams)
    assert len(chunks) == sum(streams and part != () for _index, part in deltas)
    for index, complete in enumerate(completes):
        own = [chunk for chunk in chunks if chunk.index == index]
        assert complete.index == index
        assert list(complete.output_ids) == tokens[index]
        assert complete.completion_tokens == len(tokens[index])
        assert (complete.prompt_tokens, complete.cached_tokens) == (9, 4)
        given_logprobs = [complete.output_logprobs, *(chunk.output_logprobs for chunk in own)]
        assert [token for some in given_logprobs for token in some.token_ids] == tokens[index]
        if streams:
            assert [token for chunk in own for token in chunk.token_ids] == tokens[index]
            assert sum(chunk.completion_tokens for chunk in own) == len(tokens[index])
            assert all((chunk.prompt_tokens, chunk.cached_tokens) == (9, 4) for chunk in own)


def test_logprobs_have_their_alternatives():
    chunks, _completes = messages([STARTED, delta(0, (3,))], streams=True)
    logprobs = chunks[0].output_logprobs
    assert (list(logprobs.token_ids), list(logprobs.token_logprobs)) == ([3], [-1.0])
    assert (list(logprobs.top_logprobs[0].token_ids), list(logprobs.top_logprobs[0].values)) == ([7], [-0.5])


@pytest.mark.parametrize(
    ("reason", "text"),
    [(FinishReason.STOP, "stop"), (FinishReason.LENGTH, "length"), (FinishReason.CANCELLED, "abort")],
)
def test_reasons_have_the_names_of_the_protocol(reason, text):
    _chunks, completes = messages([STARTED, CandidateEnd(0, reason, 0)], streams=False)
    assert completes[0].finish_reason == text


@pytest.mark.parametrize(
    ("stop", "field"), [(None, None), ("end", "matched_stop_str"), (5, "matched_token_id"), (0, "matched_token_id")]
)
def test_the_stop_that_ended_a_candidate_is_named(stop, field):
    end = CandidateEnd(0, FinishReason.STOP, 0, matched_stop=stop)
    _chunks, completes = messages([STARTED, end], streams=True)
    assert completes[0].WhichOneof("matched_stop") == field
    if field is not None:
        assert getattr(completes[0], field) == stop


def test_an_abort_ends_the_candidates_that_have_not_ended():
    encoder = ResponseEncoder(candidate_count=2, streams=True)
    for event in (STARTED, delta(0, (1,)), delta(1, (1, 2)), CandidateEnd(0, FinishReason.STOP, 1)):
        list(encoder.encode(event))
    (last,) = [response.complete for response in encoder.encode_abort()]
    assert (last.index, last.finish_reason, list(last.output_ids), last.completion_tokens) == (1, "abort", [1, 2], 2)


def test_a_load_has_its_share_of_the_cache():
    load = load_to_proto(Load(queued_requests=2, running_sequences=3, kv_used_tokens=25, kv_capacity_tokens=100))
    assert (load.num_waiting_reqs, load.num_running_reqs, load.num_total_reqs) == (2, 3, 5)
    assert load.token_usage == 0.25
    assert load_to_proto(Load()).token_usage == 0
