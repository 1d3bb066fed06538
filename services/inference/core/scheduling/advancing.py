"""Continues branches with the rows of logits after their tokens: candidates draw, branches split, candidates end.

Theory of operation. Each candidate of a branch draws from the row after the branch's last token. The candidates that
drew the same token stay together. The other candidates split off into new branches, which share the computed tokens. A
draft is verified by the same draws. While the drawn token is the drafted token, the next row is also valid, and the
branch continues with that row. A draft thus changes the number of steps, never the distribution of the output.

Invariants:
    1. `computed` of a continued branch counts exactly the tokens in its sequence: rejected drafts are truncated.
    2. Every candidate is in exactly one branch until its `Ended` event.
"""

from __future__ import annotations

from operator import attrgetter

from pagantic_common.domain.errors import InvalidRequest
from services.inference.core.decoding.output import Output, Row, Step
from services.inference.core.decoding.sampling import Logits
from services.inference.core.generation import FinishReason
from services.inference.core.scheduling.branches import (
    Branch,
    Candidate,
    Ended,
    Failed,
    FailureCause,
    Finished,
    Progress,
    Prompted,
    SchedulerEvent,
    Ticket,
)
from services.inference.core.scheduling.parked_prefixes import common_length
from services.inference.core.scheduling.seating import Seating

_INDEX = attrgetter("index")


class Advancing:
    """Applies rows of logits to the branches of a seating. Appends the resulting events to the given list."""

    def __init__(self, seating: Seating) -> None:
        self._seating = seating
        self.output_tokens_total = 0

    def advance(self, branch: Branch, draft: list[int], rows: Logits, events: list[SchedulerEvent]) -> int:
        """Continue a branch with the rows after its tokens and after each token of its draft.

        Returns the number of drafted tokens that were drawn. An error in the sampling, constraint or text of a request
        fails only that request.
        """
        ticket = branch.ticket
        if not ticket.is_prompted:
            self._report_prompt(ticket, events)
        try:
            return self._advance(branch, draft, rows, events)
        except InvalidRequest as error:  # the constraint can no longer be enforced
            self.fail(ticket, FailureCause.CONSTRAINT, str(error), events)
        except BaseException as error:  # noqa: BLE001 - a panic of a library written in Rust is not an Exception
            self.fail(ticket, FailureCause.UNEXPECTED, "", events, error)
        return 0

    def fail(
        self,
        ticket: Ticket,
        cause: FailureCause,
        reason: str,
        events: list[SchedulerEvent],
        error: BaseException | None = None,
    ) -> None:
        """Fail a request and remove its branches."""
        self._seating.remove_ticket(ticket)
        events.append(Failed(ticket.number, cause, reason, error))

    def drop_cancelled(self, branch: Branch, events: list[SchedulerEvent]) -> None:
        """End the cancelled candidates of a branch, and end the branch when its last candidate ends."""
        cancelled = [candidate for candidate in branch.candidates if candidate.is_cancelled]
        for candidate in cancelled:
            branch.candidates.remove(candidate)
            self._end(branch.ticket, candidate, branch.output, FinishReason.CANCELLED, events)
        if cancelled and not branch.candidates:
            self._seating.remove(branch)

    def _advance(self, branch: Branch, draft: list[int], logits: Logits, events: list[SchedulerEvent]) -> int:
        accepted = 0
        while True:
            row = branch.output.rank(logits[accepted])
            drafted = draft[accepted] if accepted < len(draft) else None
            token = self._draw(branch, row, drafted, events)
            step = self._accept(branch, token, row, events)
            if step.finish_reason is not None:
                self._seating.remove(branch)
                return accepted
            branch.extend(step.tokens)
            matched = 0
            if drafted is not None:
                matched = common_length(step.tokens, draft[accepted:], len(draft))
                branch.computed += matched
                accepted += matched
            if matched < len(step.tokens):
                break
        assert branch.sequence_id is not None  # noqa: S101 - it was just computed
        self._seating.tree.truncate(branch.sequence_id, branch.computed)
        return accepted

    def _draw(self, branch: Branch, row: Row, drafted: int | None, events: list[SchedulerEvent]) -> int:
        """Draw a token for every candidate, and return the token of the candidates that stay in the branch.

        The candidates that drew the drafted token stay. If no candidate drew it, the candidates that drew the most
        frequent token stay. The other candidates split off.
        """
        groups: dict[int, list[Candidate]] = {}
        is_random = branch.output.is_random
        for candidate in branch.candidates:
            draw = candidate.draw() if is_random else 0.0
            groups.setdefault(row.choices.pick(draw), []).append(candidate)
        if len(groups) == 1:
            return next(iter(groups))
        staying = max(groups, key=lambda token: len(groups[token]))
        if drafted in groups:
            staying = drafted
        for token, candidates in groups.items():
            if token != staying:
                self._part(branch, candidates, token, row, events)
        branch.candidates = groups[staying]
        return staying

    def _part(
        self, branch: Branch, candidates: list[Candidate], token: int, row: Row, events: list[SchedulerEvent]
    ) -> None:
        """Move the candidates that drew another token to a new branch, in which they continue."""
        other = Branch(branch.ticket, [], [], branch.output.fork(), candidates)
        step = self._accept(other, token, row, events)
        if step.finish_reason is not None:
            return
        assert branch.sequence_id is not None  # noqa: S101 - it was just computed
        other.tokens, other.keys = list(branch.tokens), list(branch.keys)
        other.extend(step.tokens)
        other.sequence_id = self._seating.tree.fork(branch.sequence_id, branch.computed)
        if other.sequence_id is not None:
            other.computed = branch.computed
        other.last_served = branch.last_served
        self._seating.branches.append(other)

    def _accept(self, branch: Branch, token: int, row: Row, events: list[SchedulerEvent]) -> Step:
        """Add a token to the output of a branch, and report the progress or the end of its candidates."""
        output, ticket, candidates = branch.output, branch.ticket, branch.candidates
        before = output.output_tokens
        step = output.accept(token, row)
        self.output_tokens_total += (output.output_tokens - before) * len(candidates)
        tokens = step.tokens if ticket.request.reports_tokens else ()
        if step.text or step.logprobs or tokens:
            indexes = tuple(map(_INDEX, candidates))
            events.append(Progress(ticket.number, indexes, step.text, output.output_tokens, step.logprobs, tokens))
        if step.finish_reason is not None:
            for candidate in candidates:
                self._end(ticket, candidate, output, step.finish_reason, events)
        return step

    def _report_prompt(self, ticket: Ticket, events: list[SchedulerEvent]) -> None:
        ticket.is_prompted = True
        request = ticket.request
        output_count = len(request.said_tokens)
        cached = max(0, len(request.tokens) + output_count - ticket.prompt_tokens_computed)
        events.append(Prompted(ticket.number, min(cached, len(request.tokens)), ticket.seated_s))
        if output_count:
            tokens = request.said_tokens if request.reports_tokens else ()
            events.append(Progress(ticket.number, (0,), request.said_text, output_count, tokens=tokens))

    def _end(
        self,
        ticket: Ticket,
        candidate: Candidate,
        output: Output,
        reason: FinishReason,
        events: list[SchedulerEvent],
    ) -> None:
        tokens = output.output_tokens
        ticket.unfinished -= 1
        ticket.output_tokens += tokens
        ticket.longest_output = max(ticket.longest_output, tokens)
        events.append(
            Ended(ticket.number, candidate.index, reason, tokens, output.constraint_satisfied, output.matched_stop)
        )
        if ticket.unfinished == 0:
            events.append(Finished(ticket.number, ticket.output_tokens, ticket.longest_output, ticket.rows))
