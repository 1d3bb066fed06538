import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from pagantic_common.testing.scripted_engine import ByteVocabulary, random_logits
from services.inference.core.decoding.sampling import log_probabilities
from services.inference.core.scheduling.branches import DecodeRequest, Ended, Finished, Progress
from services.inference.core.scheduling.scoring import ContinuationTree, GivenDraft, GivenOutput
from tests.support.examples import examples
from tests.unit.inference.batching_model import Bench

TOKENS = st.lists(st.integers(0, 255), min_size=1, max_size=30)


@settings(max_examples=examples(40), deadline=None)
@given(TOKENS, TOKENS, st.integers(2, 40))
def test_given_text_is_scored_by_the_logits_before_each_token(prompt, said, step_tokens):
    bench = Bench(step_tokens=step_tokens)
    (reading,) = ContinuationTree([said]).readings
    number = bench.scheduler.submit(
        DecodeRequest(
            tokens=tuple(prompt),
            output=GivenOutput(ByteVocabulary(), reading),
            draws=(lambda: 0.0,),
            max_tokens=len(said),
            drafter=GivenDraft(reading.path, len(prompt)),
        )
    )
    bench.run()
    found = [logprob for event in bench.of(Progress, number) for logprob in event.logprobs]
    assert [logprob.token for logprob in found] == said
    for index, logprob in enumerate(found):
        expected = log_probabilities(random_logits([*prompt, *said[:index]]))
        assert logprob.logprob == pytest.approx(expected[said[index]])
    assert bench.of(Ended, number)[0].output_tokens == len(said)
    assert bench.of(Finished, number)[0].rows == len(prompt) + len(said) - 1
    if step_tokens >= len(prompt) + len(said):
        assert bench.steps == 1


LABELS = st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=12)


@settings(max_examples=examples(60), deadline=None)
@given(TOKENS, LABELS)
def test_continuations_that_begin_alike_are_read_once(prompt, labels):
    bench = Bench(step_tokens=64)
    tree = ContinuationTree(labels)
    for reading in tree.readings:
        number = bench.scheduler.submit(
            DecodeRequest(
                tokens=tuple(prompt),
                output=GivenOutput(ByteVocabulary(), reading),
                draws=(lambda: 0.0,),
                max_tokens=len(reading.path) + 1,
                drafter=GivenDraft(reading.path, len(prompt)),
            )
        )
        bench.run()
        tree.take(reading, [logprob for event in bench.of(Progress, number) for logprob in event.logprobs])
    beginnings = {tuple(label[:end]) for label in labels for end in range(len(label))}
    wanted = [token for reading in tree.readings for tokens in reading.wanted for token in tokens]
    assert len(wanted) == len({tuple(label[: end + 1]) for label in labels for end in range(len(label))})
    assert sum(bool(tokens) for reading in tree.readings for tokens in reading.wanted) == len(beginnings)
    for label in labels:
        found = tree.logprobs_of(label)
        assert [logprob.token for logprob in found] == label
        for index, logprob in enumerate(found):
            expected = log_probabilities(random_logits([*prompt, *label[:index]]))
            assert logprob.logprob == pytest.approx(expected[label[index]])


def test_labels_of_one_token_cost_one_row():
    tree = ContinuationTree([[1], [2], [3]])
    assert [(reading.path, reading.wanted) for reading in tree.readings] == [((), ((1, 2, 3),))]


def test_an_empty_continuation_has_nothing_to_read():
    tree = ContinuationTree([[]])
    assert tree.readings == ()
    assert tree.logprobs_of([]) == ()
