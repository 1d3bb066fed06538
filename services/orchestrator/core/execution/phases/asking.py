"""Builds the inference command, and separates the tool phase of a run from the answer phase.

While a model may call tools, its output is not constrained. A constrained answer is inferred separately afterwards,
without tools.
"""

from __future__ import annotations

from pagantic_common.domain.messages import ToolChoice, ToolDefinition
from services.orchestrator.core.conversation.prompt import assemble_messages
from services.orchestrator.core.execution.commands import Infer
from services.orchestrator.core.execution.run import Run, has_answer_phase
from services.orchestrator.core.model.request import Mode

STRUCTURED_TEMPERATURE = 0.0  # Default; a hint overrides it. Structured data should be the most likely output.


def infer(run: Run, retry: int = 0) -> Infer:
    """Return the command for the next inference."""
    hints = run.request.hints
    tools = _offered_tools(run)
    tool_choice = ToolChoice()
    if tools and run.rounds == 0:
        tool_choice = hints.tool_choice
    temperature = None
    if run.request.mode is Mode.STRUCTURED and hints.temperature is None:
        temperature = STRUCTURED_TEMPERATURE
    return Infer(
        messages=assemble_messages(run.request, run.prepared, run.transcript),
        tools=tools,
        tool_choice=tool_choice,
        engine_text=engine_text(run),
        seed=_seed_of(run),
        retry=retry,
        is_streamed=not (run.is_in_tool_phase and has_answer_phase(run)),
        max_tokens=run.max_tokens,
        temperature=temperature,
        client_tools=run.request.client_tool_names,
        text_prompt=run.request.text_prompt,
    )


def engine_text(run: Run) -> str:
    """Return the constraint of the current phase, or an empty string while the model may call tools."""
    if run.is_in_tool_phase:
        return ""
    return run.prepared.engine_text


def _offered_tools(run: Run) -> tuple[ToolDefinition, ...]:
    if not run.is_in_tool_phase or not run.has_tools_left:
        return ()
    return run.prepared.tools


def _seed_of(run: Run) -> int | None:
    """Return the seed of the current attempt, or None if the request has no seed. Each retry has a different seed."""
    if run.request.hints.seed is None:
        return None
    return (run.request.hints.seed + run.attempt - 1) % 2**64
