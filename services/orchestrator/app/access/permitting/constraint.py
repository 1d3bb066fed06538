"""The constraint service, whose judge may use only the models that the tenant may use."""

from __future__ import annotations

from collections.abc import Sequence

from pagantic_common.domain.validation import Enforcement
from services.orchestrator.app.access.permitting.checks import check_model
from services.orchestrator.core.model.contract import OutputContract
from services.orchestrator.core.model.request import Request
from services.orchestrator.ports.policy import Policy
from services.orchestrator.ports.services import CompiledConstraint, ConstraintPort


class PermittedConstraint(ConstraintPort):
    """A constraint service that raises PermissionDenied (AUTH_POLICY) if the policy denies the judge's model."""

    def __init__(self, constraint: ConstraintPort, policy: Policy) -> None:
        self._constraint = constraint
        self._policy = policy

    async def compile(self, output: OutputContract, sources: Sequence[str] = ()) -> CompiledConstraint:
        return await self._constraint.compile(output, sources)

    async def compile_rules(self, request: Request) -> None:
        await self._constraint.compile_rules(request)

    async def enforce(
        self, text: str, request: Request, *, is_decoder_enforced: bool, sources: Sequence[str] = ()
    ) -> Enforcement:
        if request.semantic_intent:
            check_model(self._policy, request.hints.model)
        return await self._constraint.enforce(text, request, is_decoder_enforced=is_decoder_enforced, sources=sources)
