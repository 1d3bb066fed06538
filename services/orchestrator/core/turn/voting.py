"""Handles the vote of a REDUNDANT execution.

All replicas run in one Sample command. Each replica passes the constraint pipeline as it ends, so that a vote can be
decided early. The votes are counted in VALIDATE.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pagantic_common.domain.errors import ErrorCode, failure_of
from pagantic_common.domain.messages import Message
from pagantic_common.domain.usage import TokenUsage
from services.orchestrator.core.conversation.prompt import assemble_messages
from services.orchestrator.core.kernel.command import Answer, AnsweredCommand
from services.orchestrator.core.model.response_warning import GuardWarnings
from services.orchestrator.core.model.voting import DEFAULT_TEMPERATURE, Voting, count_votes
from services.orchestrator.core.turn.answering import Enforce, Enforced
from services.orchestrator.core.turn.ending import ask, complete, fail, move
from services.orchestrator.core.turn.replicas import Replica, documents_of, judge_usage_of, most_frequent_failure
from services.orchestrator.core.turn.run import Outcome, Run, State


@dataclass(frozen=True, slots=True)
class Sampled(Answer):
    """The results of all replicas, or of enough replicas to decide the vote.

    `seed` is the seed of replica 0. `usage` excludes the tokens of the judge.
    """

    kind: ClassVar[str] = "Sampled"

    replicas: tuple[Replica, ...]
    usage: TokenUsage
    seed: int | None = None
    model: str = ""
    warnings: GuardWarnings = ()

    @property
    def total_usage(self) -> TokenUsage:
        """The tokens of the vote, and of the judge."""
        return self.usage + judge_usage_of(self.replicas)

    def as_recorded(self) -> Self:
        """Return the answer without usage."""
        replicas = tuple(
            replace(replica, enforcement=replica.enforcement and replace(replica.enforcement, judge_usage=TokenUsage()))
            for replica in self.replicas
        )
        return replace(self, replicas=replicas, usage=TokenUsage())


@dataclass(frozen=True, slots=True)
class Sample(AnsweredCommand):
    """The command to run the replicas of one prompt, and to apply the contract to each complete output."""

    answer: ClassVar[type[Sampled]] = Sampled
    step: ClassVar[str] = "sample"

    messages: tuple[Message, ...]
    engine_text: str
    is_fully_enforced: bool
    voting: Voting
    temperature: float
    seed: int | None

    def after(self, run: Run, sampled: Sampled) -> Outcome:
        """Count the votes of the replicas."""
        run = replace(run, replicas=sampled.replicas, seed=sampled.seed, model=sampled.model or run.model)
        run = replace(run, warnings=(*run.warnings, *sampled.warnings))
        moved = move(run, State.VALIDATE, f"{len(run.replicas)} of {run.request.voting.n} replicas ended")
        ended = _count(moved.run)
        return replace(ended, transitions=(*moved.transitions, *ended.transitions))


@dataclass(frozen=True, slots=True)
class EnforceMerged(Enforce):
    """The command to run the constraint pipeline on the document merged from the winning fields."""

    def after(self, run: Run, enforced: Enforced) -> Outcome:
        """End the run with the merged document if it is valid, or with a failure otherwise."""
        enforcement = enforced.enforcement
        run = run.with_best(enforcement)
        if enforcement.valid:
            return complete(run, "each field has a winner")
        failure = enforcement.failure or failure_of(ErrorCode.CONSTRAINT_SCHEMA_INVALID, "validation failed")
        return fail(run, failure)


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
        return ask(run, EnforceMerged(count.merged_json, is_decoder_enforced=False))
    winner = next(replica for replica in run.replicas if replica.index == count.winner)
    return complete(run.with_best(winner.enforcement), "the vote has a winner")
