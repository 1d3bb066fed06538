"""What the replicas of a vote amount to."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from services.orchestrator.core.execution.inputs import Replica
from services.orchestrator.core.execution.run import Run
from services.orchestrator.core.model.response import Candidate


def ballots_of(replicas: Sequence[Replica]) -> dict[int, str]:
    """Return the documents of the replicas that vote."""
    return {
        replica.index: replica.enforcement.structured_output_json
        for replica in replicas
        if replica.enforcement is not None and replica.is_valid_vote
    }


def most_frequent_failure(replicas: Sequence[Replica]) -> Failure:
    """Return the failure of the code that most replicas have, the lowest replica's; all abstain."""
    failures = [failure for replica in replicas if (failure := _failure_of(replica)) is not None]
    if not failures:
        return failure_of(ErrorCode.INFERENCE_MALFORMED_RESPONSE, "the inference gave no candidates")
    codes = [failure.code for failure in failures]
    return max(failures, key=lambda failure: codes.count(failure.code))


def _failure_of(replica: Replica) -> Failure | None:
    if replica.enforcement is None or replica.failure is not None:
        return replica.failure
    return replica.enforcement.failure


def _document_of(replica: Replica) -> str:
    return replica.enforcement.structured_output_json if replica.enforcement and replica.failure is None else ""


def candidates_of(run: Run) -> tuple[Candidate, ...]:
    """Return what each replica said, for the response."""
    votes = {index: group.votes for group in (run.count.groups if run.count else ()) for index in group.replicas}
    return tuple(
        Candidate(
            replica_index=replica.index,
            content=replica.enforcement.output if replica.enforcement else "",
            structured_output_json=_document_of(replica),
            votes=votes.get(replica.index, 0),
            failure=_failure_of(replica),
        )
        for replica in run.replicas
    )
