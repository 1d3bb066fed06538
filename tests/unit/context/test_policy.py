import pytest

from pagantic.context.v1 import policy_pb2
from pagantic_common.domain.errors import InvalidRequest, Unsupported
from services.context.convert import policy_from_proto
from services.context.core.policy import RetrievalPolicy, Retriever


def test_an_unset_retriever_is_bm25():
    assert policy_from_proto(policy_pb2.ContextPolicy()).retriever is Retriever.BM25


def test_an_unset_least_score_is_none_and_zero_is_zero():
    assert policy_from_proto(policy_pb2.ContextPolicy()).min_score is None
    assert policy_from_proto(policy_pb2.ContextPolicy(min_score=0.0)).min_score == 0.0


def test_a_retriever_of_a_newer_version_decodes_and_is_refused_with_the_known_ones():
    policy = policy_from_proto(policy_pb2.ContextPolicy(retriever=99))
    with pytest.raises(InvalidRequest, match=r"use one of RETRIEVER_BM25, RETRIEVER_KEYWORD"):
        policy.check()


def test_a_retriever_that_does_not_exist_yet_is_unsupported():
    with pytest.raises(Unsupported, match="RETRIEVER_VECTOR arrives"):
        RetrievalPolicy("docs", Retriever.VECTOR).check_retrieval("query")


@pytest.mark.parametrize(
    ("policy", "query", "problem"),
    [
        (RetrievalPolicy("docs", max_tokens=-1), "q", "max_tokens is -1"),
        (RetrievalPolicy("a b"), "q", "policy.collection 'a b'"),
        (RetrievalPolicy("docs", min_score=float("nan")), "q", "policy.min_score is nan"),
        (RetrievalPolicy("docs"), "  ", "query is empty"),
    ],
)
def test_a_wrong_policy_is_refused_with_its_field(policy, query, problem):
    with pytest.raises(InvalidRequest, match=problem):
        policy.check_retrieval(query)
