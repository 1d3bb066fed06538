"""Streams the calls that the caller runs, and checks the arguments that no decoder held to their schemas.

The pieces of a remote model's calls wait until the inference has ended and the arguments were checked, because a call
that was streamed cannot be taken back. Other calls stream as they arrive.
"""

from __future__ import annotations

from dataclasses import replace

from pagantic_common.domain.errors import PaganticError
from pagantic_common.domain.messages import ToolCall
from pagantic_common.domain.validation import Enforcement, StageOutcome
from services.orchestrator.app.effects.scope import RunScope
from services.orchestrator.app.services import Validate
from services.orchestrator.core.execution import events
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.response import InferenceDelta, InferenceOutput, ToolCallPiece, WrongCall
from services.orchestrator.core.model.response_warning import ResponseWarning
from services.orchestrator.core.turn.answering import Infer, may_correct_calls
from services.orchestrator.core.turn.run import Run


class CallerCalls:
    """The calls of one inference that the caller runs.

    `wrong` are the calls that the model should correct. `warnings` name calls that go out with wrong arguments.
    """

    def __init__(self, run: Run, command: Infer, scope: RunScope) -> None:
        self._run = run
        self._command = command
        self._scope = scope
        self._is_remote = False
        self._waiting: list[ToolCallPiece] = []
        self.wrong: tuple[WrongCall, ...] = ()
        self.warnings: tuple[ResponseWarning, ...] = ()

    async def take(self, delta: InferenceDelta, name: str) -> None:
        """Stream the pieces of calls in a delta, or let them wait. `name` is the name of the inference."""
        self._is_remote = self._is_remote or delta.is_remote
        for piece in delta.tool_calls:
            if self._is_remote:
                self._waiting.append(piece)
            else:
                await self._stream(piece, name)

    async def finish(self, output: InferenceOutput, name: str) -> None:
        """Check the calls of the whole output, and stream the waiting pieces unless the model should correct calls."""
        wrong = await self._wrong_calls(output)
        if wrong and not self._scope.inference.calls and may_correct_calls(self._run):
            self.wrong = wrong
            return
        for piece in self._waiting:
            await self._stream(piece, name)
        self.warnings = tuple(
            ResponseWarning("tool_arguments_invalid", f"call {call.call_id}: {call.message}") for call in wrong
        )

    async def _stream(self, piece: ToolCallPiece, name: str) -> None:
        calls = self._scope.inference.calls
        if piece.name in self._command.client_tools:
            calls[piece.index] = len(calls)
        if piece.index in calls:
            streamed = replace(piece, index=calls[piece.index])
            await self._scope.recorder.emit(events.ToolCallDelta(streamed), caused_by=name)

    async def _wrong_calls(self, output: InferenceOutput) -> tuple[WrongCall, ...]:
        if output.calls_held:
            return ()
        schemas = {
            tool.name: tool.parameters_json for tool in self._command.tools if tool.name in self._command.client_tools
        }
        checked = [
            WrongCall(call.id, message)
            for call in output.tool_calls
            if schemas.get(call.name) and (message := await self._violations_of(call, schemas[call.name]))
        ]
        return tuple(checked)

    async def _violations_of(self, call: ToolCall, schema_json: str) -> str:
        """Return the violations of a call's schema by its arguments, or an empty string if there are none.

        Arguments that cannot be checked now pass, as they would if the caller's tools were unknown here.
        """
        contract = OutputContract(schema_json=schema_json, repair_allowed=False)
        judged = replace(self._run.request, output=contract, rules=(), semantic_intent="")
        try:
            enforcement = await self._scope.services.do(Validate(call.arguments_json or "{}", judged))
        except PaganticError:
            return ""
        return _reasons_of(enforcement)


def _reasons_of(enforcement: Enforcement) -> str:
    """Return the violations of arguments. Arguments that only a repair made right are wrong as the model wrote them."""
    reasons = [violation.message for violation in enforcement.violations]
    for stage in enforcement.stages:
        if stage.outcome is StageOutcome.REPAIRED:
            reasons += stage.reasons
    if not reasons and not enforcement.valid and enforcement.failure is not None:
        reasons = [enforcement.failure.message]
    return "; ".join(reasons)
