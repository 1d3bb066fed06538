"""The order of texts by the scores of a cross-encoder."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.core.relevance import best_first

SCORES = st.lists(st.floats(-1e6, 1e6), max_size=40)


@given(SCORES)
def test_every_text_is_there_once_best_first_and_equal_ones_stay_in_order(scores):
    results = best_first(scores)
    assert sorted(result.index for result in results) == list(range(len(scores)))
    for better, worse in pairwise(results):
        assert (-scores[better.index], better.index) < (-scores[worse.index], worse.index)
        assert 0 <= worse.relevance <= better.relevance <= 1


def test_the_relevance_is_the_logistic_function_of_the_score():
    [high, even, low] = best_first([0.0, -2.0, 2.0])
    assert [result.index for result in (high, even, low)] == [2, 0, 1]
    assert even.relevance == 0.5
    assert round(high.relevance, 4) == 0.8808
    assert round(low.relevance, 4) == 0.1192
