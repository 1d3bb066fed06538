import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from pagantic_common.testing.scripted_engine import ByteVocabulary, random_logits
from services.inference.core.decoding.sampling import log_probabilities
from services.inference.core.scheduling.branches import DecodeRequest, Ended, Finished, Progress
from services.inference.core.scheduling.scoring import GivenDraft, GivenOutput
from tests.unit.inference.batching_model import Bench

TOKENS = st.lists(st.integers(0, 255), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(TOKENS, TOKENS, st.integers(2, 40))
def test_given_text_is_scored_by_the_logits_before_each_token(prompt, said, step_tokens):
    bench = Bench(step_tokens=step_tokens)
    number = bench.scheduler.submit(
        DecodeRequest(
            tokens=tuple(prompt),
            output=GivenOutput(ByteVocabulary(), said, top_logprobs=1),
            draws=(lambda: 0.0,),
            max_tokens=len(said),
            drafter=GivenDraft(said, len(prompt)),
        )
    )
    bench.run()
    found = [logprob for event in bench.of(Progress, number) for logprob in event.logprobs]
    assert [logprob.token for logprob in found] == said
    for index, logprob in enumerate(found):
        expected = log_probabilities(random_logits([*prompt, *said[:index]]))
        assert logprob.logprob == pytest.approx(expected[said[index]])
        assert logprob.top[0].token == int(np.argmax(expected))
    assert bench.of(Ended, number)[0].output_tokens == len(said)
    assert bench.of(Finished, number)[0].rows == len(prompt) + len(said) - 1
    if step_tokens >= len(prompt) + len(said):
        assert bench.steps == 1
