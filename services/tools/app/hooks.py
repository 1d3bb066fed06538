"""Runs a tool with the deployment's hooks around it, in their order."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from pagantic_common.domain.messages import ToolFailed
from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.grammar.arguments import ArgumentChecker
from pagantic_common.tools import ToolDenied, ToolHook
from services.tools.ports import Report, Tool


async def run_with_hooks(
    tool: Tool, arguments: Mapping[str, Any], checker: ArgumentChecker, hooks: Sequence[ToolHook], report: Report
) -> str:
    """Return the result of a tool after its hooks.

    Raises ToolDenied, InvalidArguments for arguments that a hook made invalid, and the errors of the tool and the
    hooks.
    """
    name = tool.definition.name
    for hook in hooks:
        changed = await _waited_for(hook.before(name, dict(arguments)))
        if changed is not None:
            arguments = checker.parse(dump_json(changed))
    try:
        result = await tool.run(arguments, report)
    except ToolFailed as error:
        words = await _after(hooks, name, arguments, str(error))
        raise ToolFailed(words, is_final=error.is_final) from None
    return await _after(hooks, name, arguments, result)


async def _after(hooks: Sequence[ToolHook], name: str, arguments: Mapping[str, Any], text: str) -> str:
    for hook in hooks:
        try:
            changed = await _waited_for(hook.after(name, dict(arguments), text))
        except ToolDenied as error:  # the tool has run
            raise ToolFailed(f"its result is withheld: {error}") from None
        if changed is not None:
            text = str(changed)
    return text


async def _waited_for(result: Any) -> Any:
    if inspect.isawaitable(result):
        return await result
    return result
