"""The sequence that a cross-encoder reads."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from pagantic_common.domain.errors import ErrorCode, Internal, InvalidRequest
from services.inference.core.pairs import PairLayout, pair_scores, split_template

FIXED = st.lists(st.integers(-9, -1), max_size=3).map(tuple)
TOKENS = st.lists(st.integers(0, 9), max_size=60)


@given(st.builds(PairLayout, FIXED, FIXED, FIXED), TOKENS, TOKENS, st.integers(12, 100))
def test_only_the_end_of_a_text_is_cut_and_only_if_it_does_not_fit(layout, query, text, window):
    if len(query) > window // 2 or len(query) + layout.size >= window:
        with pytest.raises(InvalidRequest) as refused:
            layout.check_query(query, window)
        assert refused.value.code is ErrorCode.INFERENCE_CONTEXT_EXCEEDED
        return
    layout.check_query(query, window)
    whole = [*layout.before, *query, *layout.between, *text, *layout.after]
    joined = layout.join(query, text, window)
    assert len(joined) == min(len(whole), window)
    head = len(joined) - len(layout.after)
    assert joined[:head] == whole[:head]
    assert tuple(joined[head:]) == layout.after


def test_a_query_has_half_of_the_window_at_most():
    layout = PairLayout((1,), (2,), (3,))
    layout.check_query([0] * 30, 60)
    with pytest.raises(InvalidRequest, match="query has 31 tokens, at most 30"):
        layout.check_query([0] * 31, 60)


def test_a_template_is_split_before_the_white_space_of_its_places():
    parts = split_template("<s>Query: {query}\nDocument:  {document}<e>")
    assert (parts.fixed, parts.query_lead, parts.text_lead) == (("<s>Query:", "\nDocument:", "<e>"), " ", "  ")


@pytest.mark.parametrize("template", ["", "{query}", "{document}", "{document} {query}"])
def test_a_template_without_both_places_in_their_order_is_none(template):
    assert split_template(template) is None


def test_scores_are_the_first_column():
    assert pair_scores(np.array([[1.5], [-2.0]], dtype=np.float32)) == [1.5, -2.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_the_engines_failure(bad):
    with pytest.raises(Internal) as failed:
        pair_scores(np.array([[1.0], [bad]], dtype=np.float32))
    assert failed.value.code is ErrorCode.INFERENCE_ENGINE_ERROR
