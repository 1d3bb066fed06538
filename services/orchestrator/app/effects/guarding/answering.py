"""Guards the model's output as it streams, before any text is passed on."""

from __future__ import annotations

from dataclasses import replace

from pagantic_common.domain.errors import PermissionDenied
from pagantic_common.guards.plugin import GuardStage
from pagantic_common.guards.redaction import Redacted, TooLongFindingError
from services.orchestrator.app.effects.guarding.calls import check_calls
from services.orchestrator.app.effects.guarding.checking import check_texts, guards_of
from services.orchestrator.app.effects.guarding.guard_runs import (
    GuardFailedError,
    blocked,
    outcome_of_failure,
    report_action,
    run_guard,
)
from services.orchestrator.app.effects.guarding.guarded_text import Link, Said, parts_of
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.services import Sink
from services.orchestrator.core.guards.rules import GuardAction, GuardOutcome, GuardReport
from services.orchestrator.core.guards.texts import GuardedText
from services.orchestrator.core.model.request import Request
from services.orchestrator.core.model.response import FinishReason, InferenceDelta, InferenceOutput, ToolCallPiece
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.turn.answering import Infer


class OutputGuards:
    """The guards of one inference. `warnings` describe the guards' changes to the output."""

    def __init__(self, request: Request, command: Infer, scope: RunScope) -> None:
        self._request = request
        self._command = command
        self._scope = scope
        self.warnings: tuple[ResponseWarning, ...] = ()
        rules = guards_of(GuardStage.OUTPUT, request, scope)
        is_json = not request.output.is_empty
        self._content = Said([Link(rule, is_json=is_json) for rule in rules])
        self._reasoning = Said([Link(rule) for rule in rules])
        self._holds_calls = bool(rules or guards_of(GuardStage.TOOL_ARGUMENTS, request, scope))

    @property
    def is_idle(self) -> bool:
        """Whether no guard reads the model's output."""
        return not self._holds_calls

    async def take(self, delta: InferenceDelta, sink: Sink[InferenceDelta]) -> None:
        """Pass on the permitted text of a delta. Tool calls are held until they are complete.

        Raises PermissionDenied (GUARD_BLOCKED) if a guard blocks the output.
        """
        if not self._command.is_streamed:
            await sink(replace(delta, tool_calls=()))
            return
        content = await self._feed(self._content, delta.content)
        reasoning = await self._feed(self._reasoning, delta.reasoning)
        for part in parts_of(replace(delta, content=content, reasoning=reasoning, tool_calls=())):
            await sink(part)

    async def finish(self, output: InferenceOutput, sink: Sink[InferenceDelta]) -> InferenceOutput:
        """Pass on the held text and the calls that the caller runs, and return the whole guarded output.

        Raises PermissionDenied (GUARD_BLOCKED) if a guard blocks the output.
        """
        end = InferenceDelta(usage=output.usage, model=output.model, seed=output.seed)
        try:
            if self._command.is_streamed:
                content = await self._feed(self._content, is_end=True)
                reasoning = await self._feed(self._reasoning, is_end=True)
                await self._tell_redactions()
                for part in parts_of(replace(end, content=content, reasoning=reasoning)):
                    await sink(part)
            checked_output = await self._whole(output)
        except PermissionDenied:
            partial_output = self._scope.inference.said or InferenceOutput("", FinishReason.ERROR)
            self._scope.inference.said = replace(
                partial_output, usage=output.usage, model=output.model, seed=output.seed
            )
            raise
        calls = [call for call in checked_output.tool_calls if call.name in self._command.client_tools]
        if calls:
            pieces = (
                ToolCallPiece(place, tool_call.id, tool_call.name, tool_call.arguments_json)
                for place, tool_call in enumerate(calls)
            )
            await sink(replace(end, tool_calls=tuple(pieces)))
        return checked_output

    async def _whole(self, output: InferenceOutput) -> InferenceOutput:
        """Return the whole guarded output. Text that streamed unchanged is not checked again."""
        content = await self._left_of(output.content, self._content)
        reasoning = await self._left_of(output.reasoning, self._reasoning)
        logprobs = output.logprobs if content == output.content else ()  # The log-probabilities would reveal the text.
        guarded_output = replace(output, content=content, reasoning=reasoning, logprobs=logprobs)
        checked = await check_calls(guarded_output, self._command.client_tools, self._request, self._scope)
        self.warnings += checked.warnings
        return checked.output

    async def _left_of(self, text: str, said: Said) -> str:
        if text == "".join(said.raw):
            return "".join(said.passed)
        checked = await check_texts(
            [GuardedText(text, GuardStage.OUTPUT)], GuardStage.OUTPUT, self._request, self._scope
        )
        self.warnings += checked.warnings
        return checked.texts[0]

    async def _feed(self, said: Said, text: str = "", *, is_end: bool = False) -> str:
        said.raw.append(text)
        for link in said.links:
            text = await self._through(link, text, is_end=is_end)
        said.passed.append(text)
        return text

    async def _through(self, link: Link, text: str, *, is_end: bool) -> str:
        """Return the text that a guard can release now."""
        if link.is_open:
            return text
        link.stream.add(text)
        if is_end:
            link.stream.end()
        passed: list[str] = []
        while (window := link.stream.next_window()) is not None:
            try:
                (findings,) = await run_guard(link.rule, [link.seen(window)], self._request, self._scope)
                redacted = link.stream.settle(findings)
            except (GuardFailedError, TooLongFindingError):
                await self._note(link.tally.report(outcome_of_failure(link.rule)))
                link.is_open = True
                return "".join([*passed, link.stream.held])
            link.tally.add(redacted.kinds)
            await self._block_if_found(link, redacted)
            passed.append(redacted.text)
        return "".join(passed)

    async def _block_if_found(self, link: Link, redacted: Redacted) -> None:
        if link.rule.action is GuardAction.BLOCK and (redacted.kinds or redacted.held):
            if not redacted.kinds:
                link.tally.add([redacted.held])
            await self._note(link.tally.report(GuardOutcome.BLOCKED))

    async def _tell_redactions(self) -> None:
        for link in (*self._content.links, *self._reasoning.links):
            if link.tally.kinds and not link.is_open:
                await self._note(link.tally.report(GuardOutcome.REDACTED))

    async def _note(self, report: GuardReport) -> None:
        await report_action(report, self._scope)
        if report.is_blocked:
            raise blocked(report)
        self.warnings += (report.warning,)
