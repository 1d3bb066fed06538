import pytest

from pagantic.context.v1 import policy_pb2
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.ranking import Fusion
from services.context.convert import policy_from_proto
from services.context.core.policy import Expansion, RetrievalPolicy, Retriever


def test_an_unset_retriever_is_bm25():
    assert policy_from_proto(policy_pb2.ContextPolicy()).retriever is Retriever.BM25


def test_an_unset_least_score_is_none_and_zero_is_zero():
    assert policy_from_proto(policy_pb2.ContextPolicy()).min_score is None
    assert policy_from_proto(policy_pb2.ContextPolicy(min_score=0.0)).min_score == 0.0


def test_a_retriever_of_a_newer_version_decodes_and_is_refused_with_the_known_ones():
    policy = policy_from_proto(policy_pb2.ContextPolicy(retriever=99))
    with pytest.raises(InvalidRequest, match=r"use one of RETRIEVER_BM25, RETRIEVER_KEYWORD"):
        policy.check()


def test_unset_choices_of_a_fusion_are_the_defaults():
    policy = policy_from_proto(policy_pb2.ContextPolicy(retriever=policy_pb2.RETRIEVER_HYBRID))
    assert (policy.fusion, policy.score_kind_of(1)) == (Fusion.WEIGHTED, "weighted")
    assert (policy.vector_weight, policy.smoothing) == (0.6, 0.5)
    ranks = policy_from_proto(
        policy_pb2.ContextPolicy(
            retriever=policy_pb2.RETRIEVER_HYBRID,
            fusion=policy_pb2.FUSION_RECIPROCAL_RANK,
            vector_weight=0.0,
            smoothing=0.0,
        )
    )
    assert (ranks.fusion, ranks.score_kind_of(1)) == (Fusion.RECIPROCAL_RANK, "rrf")
    assert (ranks.vector_weight, ranks.smoothing) == (0.0, 0.0)
    assert policy_from_proto(policy_pb2.ContextPolicy(retriever=policy_pb2.RETRIEVER_VECTOR)).smoothing == 0.0


@pytest.mark.parametrize(
    ("policy", "query", "problem"),
    [
        (RetrievalPolicy("docs", max_tokens=-1), "q", "max_tokens is -1"),
        (RetrievalPolicy("a b"), "q", "policy.collection 'a b'"),
        (RetrievalPolicy("docs", min_score=float("nan")), "q", "policy.min_score is nan"),
        (RetrievalPolicy("docs"), "  ", "query is empty"),
        (RetrievalPolicy("docs", fusion=None), "q", "use one of FUSION_RECIPROCAL_RANK, FUSION_WEIGHTED"),
        (RetrievalPolicy("docs", vector_weight=1.5), "q", r"policy.vector_weight is 1.5: it must be in \[0, 1\]"),
        (RetrievalPolicy("docs", smoothing=0.96), "q", r"policy.smoothing is 0.96: it must be in \[0, 0.95\]"),
        (RetrievalPolicy("docs", diversity=float("nan")), "q", "policy.diversity is nan"),
        (RetrievalPolicy("docs", expansion=Expansion(11)), "q", "policy.expansion.neighbours is 11"),
        (RetrievalPolicy("docs", filter="metadata.a =="), "q", "policy.filter: the expression does not compile"),
        (RetrievalPolicy("docs", filter="year > 1"), "q", "policy.filter: the expression reads 'year'"),
    ],
)
def test_a_wrong_policy_is_refused_with_its_field(policy, query, problem):
    with pytest.raises(InvalidRequest, match=problem):
        policy.check_retrieval(query)


@pytest.mark.parametrize(
    ("more_queries", "problem"),
    [(["a"] * 9, "more_queries has 9 entries: at most 8"), (["a", " "], r"more_queries\[1\] is empty: leave it out")],
)
def test_further_queries_have_bounds(more_queries, problem):
    with pytest.raises(InvalidRequest, match=problem):
        RetrievalPolicy("docs").check_retrieval("q", more_queries)


def test_what_several_queries_find_is_scored_by_ranks():
    for retriever in Retriever:
        assert RetrievalPolicy("docs", retriever).score_kind_of(2) == "rrf"
