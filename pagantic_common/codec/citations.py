"""Converts the limits on citations between protobuf messages and domain types."""

from __future__ import annotations

from pagantic.constraint.v1 import contract_pb2
from pagantic_common.domain.text.citations import CitationPolicy


def citations_to_proto(policy: CitationPolicy) -> contract_pb2.Citations:
    """Encode the limits on citations."""
    return contract_pb2.Citations(
        max_claims=policy.max_claims, max_quote_words=policy.max_quote_words, may_abstain=policy.may_abstain
    )


def citations_from_proto(citations: contract_pb2.Citations) -> CitationPolicy:
    """Decode the limits on citations. A limit of 0 and an unset field select the default."""
    default = CitationPolicy()
    return CitationPolicy(
        max_claims=citations.max_claims or default.max_claims,
        max_quote_words=citations.max_quote_words or default.max_quote_words,
        may_abstain=citations.may_abstain or not citations.HasField("may_abstain"),
    )
