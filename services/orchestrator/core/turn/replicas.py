"""The replicas of a vote, and their conversion to votes, candidates or a single failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.core.model.response import Candidate
from services.orchestrator.core.model.voting import Count


@dataclass(frozen=True, slots=True)
class Replica:
    """The result of one replica: the enforcement of its output, or a failure."""

    index: int
    enforcement: Enforcement | None = None
    failure: Failure | None = None

    @property
    def is_valid_vote(self) -> bool:
        """Whether the replica votes. Otherwise it abstains."""
        if self.enforcement is None or not self.enforcement.valid or self.failure is not None:
            return False
        try:
            parse_json(self.enforcement.structured_output_json, is_rewritable=True)
        except JsonTextError:  # A number too large for a double, or half of a surrogate pair, is not comparable.
            return False
        return True


def judge_usage_of(replicas: Sequence[Replica]) -> TokenUsage:
    """Return the tokens that the judge used for the replicas."""
    judged = (replica.enforcement.judge_usage for replica in replicas if replica.enforcement is not None)
    return sum(judged, TokenUsage())


def documents_of(replicas: Sequence[Replica]) -> dict[int, str]:
    """Return the documents of the replicas with a valid vote, by replica index."""
    return {
        replica.index: replica.enforcement.structured_output_json
        for replica in replicas
        if replica.enforcement is not None and replica.is_valid_vote
    }


def most_frequent_failure(replicas: Sequence[Replica]) -> Failure:
    """Return the failure with the most frequent code, as reported by the lowest replica.

    All replicas must have abstained.
    """
    failures = [failure for replica in replicas if (failure := _failure_of(replica)) is not None]
    if not failures:
        return failure_of(ErrorCode.INFERENCE_MALFORMED_RESPONSE, "the inference gave no candidates")
    codes = [failure.code for failure in failures]
    return max(failures, key=lambda failure: codes.count(failure.code))


def _failure_of(replica: Replica) -> Failure | None:
    if replica.enforcement is None or replica.failure is not None:
        return replica.failure
    return replica.enforcement.failure


def candidates_of(replicas: Sequence[Replica], count: Count | None) -> tuple[Candidate, ...]:
    """Return the replicas as candidates of the response, with their votes if the votes were counted."""
    votes: dict[int, int] = {}
    if count is not None:
        votes = {index: group.votes for group in count.groups for index in group.replicas}
    return tuple(_candidate_of(replica, votes.get(replica.index, 0)) for replica in replicas)


def _candidate_of(replica: Replica, votes: int) -> Candidate:
    candidate = Candidate(replica.index, votes=votes, failure=_failure_of(replica))
    if replica.enforcement is None:
        return candidate
    if replica.failure is not None:
        return replace(candidate, content=replica.enforcement.output)
    return replace(
        candidate,
        content=replica.enforcement.output,
        structured_output_json=replica.enforcement.structured_output_json,
    )
