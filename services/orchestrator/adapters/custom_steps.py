"""A deployment's own kinds of plan steps: the functions in the setting STEP_KINDS."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping

from pagantic_common.domain.errors import InvalidRequest
from services.orchestrator.core.model.plan import StepKind
from services.orchestrator.ports.services import CustomStep


def load_custom_steps(functions: Mapping[str, str]) -> dict[str, CustomStep]:
    """Import the function of each kind, given as `package.module:function`.

    Raises InvalidRequest (CONFIG_INVALID) for a function that cannot be imported or is not a coroutine function, and
    for the name of a built-in kind.
    """
    return {kind: _load(kind, path) for kind, path in functions.items()}


def _load(kind: str, path: str) -> CustomStep:
    where = f"STEP_KINDS names {path!r} for kind {kind!r}"
    if kind in tuple(StepKind):
        raise InvalidRequest(f"{where}, which is a built-in kind: choose another name")
    module_name, _, function_name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidRequest(f"{where}, which cannot be imported: {error}") from None
    if not inspect.iscoroutinefunction(function):
        raise InvalidRequest(f"{where}, which is not a coroutine function: write `async def`")
    step: CustomStep = function
    return step
