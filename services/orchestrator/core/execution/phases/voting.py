"""Handles the vote of a REDUNDANT execution.

All replicas run in one Sample command. Each replica passes the constraint pipeline as it ends, so that a vote can be
decided early. The votes are counted in VALIDATE.
"""

from __future__ import annotations

from dataclasses import replace

from pagantic_common.domain.errors import ErrorCode, failure_of
from services.orchestrator.core.conversation.prompt import assemble_messages
from services.orchestrator.core.execution.commands import Enforce, Sample
from services.orchestrator.core.execution.ending import ask, complete, fail, move
from services.orchestrator.core.execution.inputs import Enforced, Sampled
from services.orchestrator.core.execution.lifecycle import State
from services.orchestrator.core.execution.replicas import documents_of, most_frequent_failure
from services.orchestrator.core.execution.run import Outcome, Run
from services.orchestrator.core.model.voting import DEFAULT_TEMPERATURE, count_votes


def sample(run: Run) -> Sample:
    """Return the command that runs the replicas."""
    request = run.request
    temperature = request.hints.temperature
    if temperature is None:
        temperature = DEFAULT_TEMPERATURE
    return Sample(
        messages=assemble_messages(request, run.prepared, ()),
        engine_text=run.prepared.engine_text,
        is_fully_enforced=run.prepared.is_fully_enforced,
        voting=request.voting,
        temperature=temperature,
        seed=request.hints.seed,
    )


def after_sampling(run: Run, sampled: Sampled) -> Outcome:
    """Count the votes of the replicas."""
    run = replace(run, replicas=sampled.replicas, seed=sampled.seed, model=sampled.model or run.model)
    run = replace(run, warnings=(*run.warnings, *sampled.warnings))
    moved = move(run, State.VALIDATE, f"{len(run.replicas)} of {run.request.voting.n} replicas ended")
    ended = _count(moved.run)
    return replace(ended, transitions=(*moved.transitions, *ended.transitions))


def _count(run: Run) -> Outcome:
    documents = documents_of(run.replicas)
    if not documents and len(run.replicas) == run.request.voting.n:
        return fail(run, most_frequent_failure(run.replicas))
    if not documents:
        message = f"no consensus: all {len(run.replicas)} replicas that ended abstain, and that decides the vote"
        return fail(run, failure_of(ErrorCode.ORCHESTRATION_NO_CONSENSUS, message))
    count = count_votes(documents, run.request.voting)
    run = replace(run, count=count)
    if count.objection:
        return fail(run, failure_of(ErrorCode.ORCHESTRATION_NO_CONSENSUS, f"no consensus: {count.objection}"))
    if count.winner is None:
        return ask(run, Enforce(count.merged_json, is_decoder_enforced=False))
    winner = next(replica for replica in run.replicas if replica.index == count.winner)
    return complete(run.with_best(winner.enforcement), "the vote has a winner")


def after_merging(run: Run, enforced: Enforced) -> Outcome:
    """End the run with the document of the winning fields if it is valid, or otherwise with a failure."""
    enforcement = enforced.enforcement
    run = run.with_best(enforcement)
    if enforcement.valid:
        return complete(run, "each field has a winner")
    failure = enforcement.failure or failure_of(ErrorCode.CONSTRAINT_SCHEMA_INVALID, "validation failed")
    return fail(run, failure)
