"""Draws the replicas of a vote, and enforces the contract on each replica as it ends."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from pagantic_common.domain.errors import ErrorCategory, Failure, PaganticError, Unavailable
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.guards.plugin import GuardStage
from services.orchestrator.app.effects.enforcing import enforced
from services.orchestrator.app.effects.guarding.checking import check_texts
from services.orchestrator.app.effects.scope import RunScope, end_of, inference_events
from services.orchestrator.app.failures import failure_from
from services.orchestrator.app.services import Draw, EnoughError
from services.orchestrator.core.execution import events
from services.orchestrator.core.execution.progress import Progress
from services.orchestrator.core.guards.texts import GuardedText
from services.orchestrator.core.model.response import CandidateOutput, FinishReason, InferenceOutput
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.model.voting import canonical_json, is_decided
from services.orchestrator.core.turn.answering import Enforce
from services.orchestrator.core.turn.ending import is_cut, truncation_of
from services.orchestrator.core.turn.replicas import Replica, documents_of
from services.orchestrator.core.turn.run import Run
from services.orchestrator.core.turn.voting import Sample, Sampled


async def sample(run: Run, command: Sample, scope: RunScope) -> Sampled:
    """Collect all replicas, or enough to decide the vote, and then stop the replicas that are still decoding."""
    progress = scope.recorder.progress
    votes, failed = _Votes(run, command, scope), None
    try:
        async with inference_events(run.request, command, scope, votes.end):
            try:
                await votes.collect()
            except PaganticError as error:
                failed = error
                raise
    except PaganticError as error:
        if error is not failed:  # The journal raised the error.
            raise
        failure = failure_from(error)
        if not progress.replicas or failure.category is ErrorCategory.CANCELLATION:
            raise
        for index in set(range(command.voting.n)) - set(progress.replicas):
            progress.replicas[index] = Replica(index, failure=failure)  # It abstains; ended candidates still count.
    return Sampled(progress.ended_replicas, progress.vote_usage, votes.last.seed, votes.last.model, votes.warnings)


class _Votes:
    """The candidates of one vote. `last` is the last candidate's output, and `warnings` are the guards' warnings."""

    def __init__(self, run: Run, command: Sample, scope: RunScope) -> None:
        self._run = run
        self._command = command
        self._scope = scope
        self.last = InferenceOutput("", FinishReason.ERROR)
        self.warnings: tuple[ResponseWarning, ...] = ()

    async def collect(self) -> None:
        """Cast the vote of each candidate as it ends, until all have ended or the vote is decided.

        A vote that is lost before its first candidate ends is restarted once.
        """
        progress = self._scope.recorder.progress
        try:
            await self._draw(TokenUsage())
        except Unavailable as error:
            has_begun = progress.vote_usage != TokenUsage()
            if progress.replicas or error.code is not None or not has_begun:
                raise
            await self._draw(progress.vote_usage)

    def end(self, _failure: Failure | None) -> events.InferenceEnd:
        """Return the content of the end event of the vote's inference."""
        return end_of(replace(self.last, usage=self._scope.recorder.progress.vote_usage))

    async def _draw(self, lost: TokenUsage) -> None:
        """Draw the candidates, and add up the usage of all candidates and of the lost attempt."""
        progress, voting = self._scope.recorder.progress, self._command.voting

        async def take(item: CandidateOutput | TokenUsage) -> None:
            if isinstance(item, TokenUsage):
                progress.vote_usage = lost + item
                return
            progress.vote_usage += item.output.usage
            self.last = item.output
            progress.replicas[item.index] = await self._cast(item)
            may_stop = voting.early_stop and len(progress.replicas) < voting.n
            if may_stop and _is_decided(progress, self._command):
                raise EnoughError

        await self._scope.services.do(Draw(self._run.request.hints, self._command), take)

    async def _cast(self, ended: CandidateOutput) -> Replica:
        name = f"replica-{ended.index}"
        replica = await self._judge(ended, name)
        document = documents_of((replica,)).get(ended.index)
        value_hash = ""
        if document:
            value_hash = hashlib.sha256(canonical_json(document).encode()).hexdigest()
        cast = events.VoteCast(ended.index, value_hash, is_abstained=not replica.is_valid_vote)
        await self._scope.recorder.emit(cast, caused_by=name)
        return replica

    async def _judge(self, ended: CandidateOutput, name: str) -> Replica:
        command, request, output = self._command, self._run.request, ended.output
        is_enforced = bool(command.engine_text) and command.is_fully_enforced and output.constraint_satisfied
        try:
            text = GuardedText(output.content, GuardStage.OUTPUT)
            checked = await check_texts([text], GuardStage.OUTPUT, request, self._scope)
            self.warnings += checked.warnings
            enforcement = await enforced(
                request, Enforce(checked.texts[0], is_decoder_enforced=is_enforced), self._scope, name
            )
        except PaganticError as error:
            failure = failure_from(error)
            if failure.category is ErrorCategory.CANCELLATION:
                raise
            return Replica(ended.index, failure=failure)
        if is_cut(request, output, enforcement):
            return Replica(ended.index, enforcement, truncation_of(request, output))
        return Replica(ended.index, enforcement)


def _is_decided(progress: Progress, command: Sample) -> bool:
    documents = documents_of(progress.ended_replicas)
    return is_decided(documents, len(progress.replicas) - len(documents), command.voting)
