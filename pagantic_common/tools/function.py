"""Makes a tool from a typed function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import docstring_parser

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import check_tool_name
from pagantic_common.domain.messages import ToolDefinition, ToolSafety
from pagantic_common.tools.parameters import Parameters
from pagantic_common.tools.requirements import Requirement

MAX_CONCURRENT = 8
MAX_TIMEOUT_S = 24 * 3600

P = ParamSpec("P")
R = TypeVar("R")


class FunctionTool(Generic[P, R]):
    """A function that models can call. A direct call runs the function.

    Attributes:
        definition: The definition of the tool for models.
        parameters: Reads the arguments of the function.
        max_concurrent: Maximum number of concurrent calls.
        outcome_function: The function that `outcome` registered, or None.
    """

    def __init__(
        self, function: Callable[P, R], definition: ToolDefinition, parameters: Parameters, max_concurrent: int
    ) -> None:
        self.function = function
        self.outcome_function: Callable[[str], Any] | None = None
        self.definition = definition
        self.parameters = parameters
        self.max_concurrent = max_concurrent
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the undecorated function."""
        return self.function(*args, **kwargs)

    def outcome(self, function: Callable[[str], Any]) -> Callable[[str], Any]:
        """Register the function that finds the outcome of a lost call by its effect id. May be used as a decorator.

        The function, async or not, returns the result of the call, or raises ToolNotRun if the call neither had nor
        will have an effect. After any other error, the outcome is unknown.
        """
        self.outcome_function = function
        return function

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str = "",
    description: str = "",
    safety: ToolSafety | str = ToolSafety.EXTERNAL,
    idempotent: bool = False,
    timeout_s: float | None = None,
    max_concurrent: int = MAX_CONCURRENT,
    requires: Sequence[str] = (),
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    safety: ToolSafety | str = ToolSafety.EXTERNAL,
    idempotent: bool = False,
    timeout_s: float | None = None,
    max_concurrent: int = MAX_CONCURRENT,
    requires: Sequence[str] = (),
) -> Any:
    """Make a tool from a function with annotated parameters. Its docstring describes the tool to models.

    A parameter is described by the docstring, or by `Annotated[..., Field(description=...)]`, which also sets limits. A
    result that is not text is written as JSON. ToolFailed informs the model of the reason for a missing result.

    Args:
        function: The function, async or not. A function that is not async runs in its own thread.
        name: The name of the tool for models; by default, the name of the function.
        description: The description of the tool; by default, the docstring.
        safety: The safety class of a call: none, read, write or external.
        idempotent: Whether a failed call may be repeated.
        timeout_s: Maximum time of a run in seconds, at most a day; None selects the service's default.
        max_concurrent: Maximum number of concurrent calls. Additional calls wait.
        requires: Requirements for the machine of the tools service: "network", "binary:NAME" for a program on its PATH,
            or "env:NAME" for an environment variable that is not empty. If a requirement is not met, the tool is not
            available.

    Raises InvalidRequest if the function cannot be a tool.
    """

    def make(function: Callable[..., Any]) -> FunctionTool[Any, Any]:
        text = docstring_parser.parse(inspect.getdoc(function) or "")
        parameters = Parameters(function, text)
        definition = ToolDefinition(
            name=name or function.__name__,
            description=description or (text.description or "").strip(),
            parameters_json=parameters.schema_json,
            safety=_safety_of(safety),
            idempotent=idempotent,
            timeout_s=timeout_s,
            requires=(requires,) if isinstance(requires, str) else tuple(requires),
        )
        _check(function, definition, max_concurrent)
        return FunctionTool(function, definition, parameters, max_concurrent)

    if function is None:
        return make
    return make(function)


def _check(function: Callable[..., Any], definition: ToolDefinition, max_concurrent: int) -> None:
    """Raise InvalidRequest if the function cannot be a tool, or if an option is out of range."""
    name, timeout_s = definition.name, definition.timeout_s
    check_tool_name(name)
    if not definition.description:
        raise InvalidRequest(f"function {function.__name__!r} has no docstring: it tells models what the tool does")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidRequest(f"function {function.__name__!r} yields: return a list instead")
    if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequest(f"timeout_s of {name!r} is {timeout_s}: it must be above 0 and at most {MAX_TIMEOUT_S}")
    if max_concurrent < 1:
        raise InvalidRequest(f"max_concurrent of {name!r} is {max_concurrent}: it must be 1 or more")
    for text in definition.requires:
        Requirement.parse(text)


def _safety_of(safety: ToolSafety | str) -> ToolSafety:
    try:
        return ToolSafety(safety)
    except ValueError:
        choices = ", ".join(ToolSafety)
        raise InvalidRequest(f"safety is {safety!r}: it is one of {choices}") from None
