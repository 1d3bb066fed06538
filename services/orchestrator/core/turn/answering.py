"""The rounds of inferences and tool calls that lead to an answer, and the validation of the answer.

While a model may call tools, its output is not constrained. A constrained answer is inferred separately afterwards,
without tools. An invalid or truncated answer is retried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pagantic_common.domain.errors import ErrorCode, Failure, failure_of
from pagantic_common.domain.messages import Message, Role, ToolCall, ToolChoice, ToolDefinition
from pagantic_common.domain.text.json_text import JsonTextError, parse_json
from pagantic_common.domain.usage import TokenUsage
from pagantic_common.domain.validation import Enforcement
from services.orchestrator.core.conversation.prompt import answer_now_message, assemble_messages, feedback_message
from services.orchestrator.core.kernel.command import Answer, AnsweredCommand
from services.orchestrator.core.model.request import Mode
from services.orchestrator.core.model.response import FinishReason, InferenceOutput, ToolCallRecord, WrongCall
from services.orchestrator.core.model.response_warning import GuardWarnings, ResponseWarning
from services.orchestrator.core.model.voting import canonical_json
from services.orchestrator.core.turn.ending import ask, complete, fail, is_cut, move, raised_limit, truncation_of
from services.orchestrator.core.turn.run import DiscardedAttempt, Outcome, Run, State, count_repairs, has_answer_phase

STRUCTURED_TEMPERATURE = 0.0  # Default, unless a hint overrides it. Structured data should be the most likely output.
_NOT_RUN = "Not run, because the arguments of another call are not right: call again."
_EMPTY_ANSWER = ResponseWarning("empty_answer", "the model ended its answer without a text")


@dataclass(frozen=True, slots=True)
class Inferred(Answer):
    """The result of an inference.

    `output` is the guarded output. `warnings` come from the guards, or are about calls that the caller runs.
    `score_usage` is the usage of estimating whether the sources contain the answer. `wrong_calls` are calls for the
    model to correct before the caller runs them.
    """

    kind: ClassVar[str] = "Inferred"

    output: InferenceOutput
    score_usage: TokenUsage = TokenUsage()
    warnings: GuardWarnings = ()
    wrong_calls: tuple[WrongCall, ...] = ()

    @property
    def total_usage(self) -> TokenUsage:
        """The tokens of the inference and of the estimate."""
        return self.output.usage + self.score_usage

    def as_recorded(self) -> Self:
        """Return the answer without usage."""
        return replace(self, output=replace(self.output, usage=TokenUsage()), score_usage=TokenUsage())


@dataclass(frozen=True, slots=True)
class Infer(AnsweredCommand):
    """The command to run an inference, after a wait if `retry` is above 0. A `text_prompt` replaces the messages.

    If `is_streamed` is set, the text is streamed to the caller. Calls of `client_tools` are always streamed. A
    `max_tokens` of 0 and a `temperature` of None select the values of the hints.
    """

    answer: ClassVar[type[Inferred]] = Inferred
    step: ClassVar[str] = "infer"
    is_counted: ClassVar[bool] = True

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...]
    tool_choice: ToolChoice
    engine_text: str
    seed: int | None
    retry: int = 0
    is_streamed: bool = True
    max_tokens: int = 0
    temperature: float | None = None
    client_tools: frozenset[str] = frozenset()
    text_prompt: str = ""

    def after(self, run: Run, inferred: Inferred) -> Outcome:
        """Run the tool calls in an output, or accept the output as the answer."""
        output = inferred.output
        warnings = (*run.warnings, *inferred.warnings)
        run = replace(run, output=output, rounds=run.rounds + 1, model=output.model or run.model, warnings=warnings)
        if inferred.wrong_calls:
            return _correct_calls(run, output, inferred.wrong_calls)
        if output.tool_calls:
            return _run_tools(run, output)
        if run.rounds == 1 and run.is_in_tool_phase and run.request.hints.tool_choice.is_enforced:
            return _fail_without_answer(run, output, "the required tool call is missing")
        if run.is_in_tool_phase and has_answer_phase(run):
            run = replace(run, is_in_tool_phase=False)
            return ask(run, infer(run))
        return _after_answer(run, output)


@dataclass(frozen=True, slots=True)
class ToolsRan(Answer):
    """The results of all calls of one round, in call order."""

    kind: ClassVar[str] = "ToolsRan"

    records: tuple[ToolCallRecord, ...]


@dataclass(frozen=True, slots=True)
class RunTools(AnsweredCommand):
    """The command to run the calls of one round, which are independent of each other."""

    answer: ClassVar[type[ToolsRan]] = ToolsRan
    step: ClassVar[str] = "tools"
    is_counted: ClassVar[bool] = True

    calls: tuple[ToolCall, ...]

    def after(self, run: Run, ran: ToolsRan) -> Outcome:
        """Continue with the results of the tool calls, or hand over the calls of caller-run tools."""
        run = _with_round(replace(run, records=(*run.records, *ran.records), latest=ran.records))
        if run.output is not None and (for_caller := _calls_for_caller(run, run.output)):
            return _hand_over(run, for_caller)
        return _after_round(run)


@dataclass(frozen=True, slots=True)
class Enforced(Answer):
    """The result of the constraint pipeline."""

    kind: ClassVar[str] = "Enforced"

    enforcement: Enforcement

    @property
    def total_usage(self) -> TokenUsage:
        """The tokens of the judge."""
        return self.enforcement.judge_usage

    def as_recorded(self) -> Self:
        """Return the answer without usage."""
        return replace(self, enforcement=replace(self.enforcement, judge_usage=TokenUsage()))


@dataclass(frozen=True, slots=True)
class Enforce(AnsweredCommand):
    """The command to run the constraint pipeline on an output."""

    answer: ClassVar[type[Enforced]] = Enforced
    step: ClassVar[str] = "validate"
    is_counted: ClassVar[bool] = True

    output: str
    is_decoder_enforced: bool

    def after(self, run: Run, enforced: Enforced) -> Outcome:
        """Deliver a valid answer. Retry an invalid or truncated answer, or end the run if no retry is possible."""
        enforcement = enforced.enforcement
        output = run.output or InferenceOutput("", FinishReason.STOP)
        cut = _truncation_of(run, enforcement)
        is_right = enforcement.valid and cut is None
        failure = cut or enforcement.failure
        run = replace(run, repair_attempts=run.repair_attempts + count_repairs(enforcement), last_failure=failure)
        if is_right or _is_better(enforcement, run.best):
            run = replace(run, best=enforcement, best_output=output, cut=cut)
        if is_right:
            return complete(run, "all stages passed")
        retried = _retry(run, enforcement, output, cut)
        if retried is not None:
            return retried
        if not run.request.output.strict_validation:
            return complete(run, f"attempts used up after {run.attempt}, strict_validation is off")
        return fail(run, failure or failure_of(ErrorCode.CONSTRAINT_SCHEMA_INVALID, "validation failed"))


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


def may_correct_calls(run: Run) -> bool:
    """Return whether the model may be asked to correct the next output's calls, which happens at most once."""
    return not run.has_corrected_calls and run.rounds + 1 < run.request.max_tool_rounds


def _after_answer(run: Run, output: InferenceOutput) -> Outcome:
    if run.request.output.is_empty and _is_silent(run, output):
        return _after_empty_answer(run, output)
    if not run.request.is_validated:
        return complete(run, "answered")
    enforced = bool(engine_text(run)) and run.prepared.is_fully_enforced and output.constraint_satisfied
    return move(run, State.VALIDATE, "output produced", Enforce(output.content, is_decoder_enforced=enforced))


def _fail_without_answer(run: Run, output: InferenceOutput, message: str) -> Outcome:
    """Fail with the truncation if a limit or a stop text cut the output, or with `message` otherwise."""
    if output.finish_reason is FinishReason.LENGTH or output.matched_stop:
        return fail(run, truncation_of(run.request, output, run.max_tokens))
    return fail(run, failure_of(ErrorCode.INFERENCE_MALFORMED_RESPONSE, message))


def _is_silent(run: Run, output: InferenceOutput) -> bool:
    """Return whether an answer is empty without an explanation by a stop text or a raw text prompt."""
    return not (output.content.strip() or output.matched_stop or run.request.text_prompt)


def _calls_for_caller(run: Run, output: InferenceOutput) -> tuple[ToolCall, ...]:
    names = run.request.client_tool_names
    return tuple(call for call in output.tool_calls if call.name in names)


def _hand_over(run: Run, calls: tuple[ToolCall, ...]) -> Outcome:
    """End the run with the tool calls that the caller must run."""
    return complete(replace(run, handed_over=calls), "the caller runs tools")


def _run_tools(run: Run, output: InferenceOutput) -> Outcome:
    """Run the calls of a round. If they repeat the previous round, continue without tools."""
    for_caller = _calls_for_caller(run, output)
    own = tuple(call for call in output.tool_calls if call not in for_caller)
    if not own:
        return _hand_over(_with_round(replace(run, latest=())), for_caller)
    limit = run.request.max_tool_rounds
    if run.rounds >= limit and not for_caller:
        message = f"the model still calls tools after {limit} inference rounds, the limit of hints.max_tool_rounds"
        return fail(run, failure_of(ErrorCode.ORCHESTRATION_ITERATION_LIMIT, message))
    if _repeats_round(output.tool_calls, run.latest):
        return _after_round(_with_round(_without_tools(run)))
    return ask(run, RunTools(own))


def _correct_calls(run: Run, output: InferenceOutput, wrong: tuple[WrongCall, ...]) -> Outcome:
    """Report the wrong arguments to the model, and ask for the calls again. None of the output's calls run."""
    messages = {call.call_id: f"The arguments are not right: {call.message}" for call in wrong}
    results = tuple(
        Message(Role.TOOL, content=messages.get(call.id, _NOT_RUN), tool_call_id=call.id, name=call.name)
        for call in output.tool_calls
    )
    text = Message(Role.ASSISTANT, content=output.content, reasoning=output.reasoning)
    turn = (*run.turn, text) if output.content else run.turn  # The text was already streamed.
    transcript = (*run.transcript, replace(text, tool_calls=output.tool_calls), *results)
    run = replace(run, transcript=transcript, turn=turn, has_corrected_calls=True)
    command = infer(run)
    if run.rounds == 1:  # A demand for a call still applies.
        command = replace(command, tool_choice=run.request.hints.tool_choice)
    return ask(run, command)


def _without_tools(run: Run) -> Run:
    return replace(run, has_tools_left=False, is_in_tool_phase=run.is_in_tool_phase and not has_answer_phase(run))


def _after_empty_answer(run: Run, output: InferenceOutput) -> Outcome:
    """Ask the model once more, without tools, if the empty answer follows tool calls.

    Otherwise deliver the empty answer with a warning, unless a limit ended it or the request's rules or intent need a
    text to judge.
    """
    was_cut = output.finish_reason is FinishReason.LENGTH
    if run.records and run.is_in_tool_phase and run.has_tools_left and not was_cut:
        run = _without_tools(run)
        run = replace(run, transcript=(*run.transcript, answer_now_message()))
        return ask(run, infer(run))
    if was_cut or run.request.is_validated:
        return _fail_without_answer(run, output, "the model gave an empty answer")
    return complete(replace(run, warnings=(*run.warnings, _EMPTY_ANSWER)), "answered")


def _with_round(run: Run) -> Run:
    """Add the calls of the latest round and their results to the transcript."""
    output = run.output or InferenceOutput("", FinishReason.TOOL)
    message = Message(Role.ASSISTANT, content=output.content, reasoning=output.reasoning, tool_calls=output.tool_calls)
    results = _result_messages(output.tool_calls, run.latest)
    return replace(run, transcript=(*run.transcript, message, *results), turn=(*run.turn, message, *results))


def _after_round(run: Run) -> Outcome:
    """Ask the model again, with the results of the latest round.

    If the model has no tools left and there is no separate answer phase, request an answer.
    """
    if not run.has_tools_left and not has_answer_phase(run):
        run = replace(run, transcript=(*run.transcript, answer_now_message()))
    return ask(run, infer(run))


def _repeats_round(calls: Sequence[ToolCall], latest: Sequence[ToolCallRecord]) -> bool:
    """Return whether the calls repeat the latest round.

    Returns False if a retry of any call of that round might succeed.
    """
    if any(record.is_retryable for record in latest):
        return False
    return {_call_key(call.name, call.arguments_json) for call in calls} == {
        _call_key(record.name, record.arguments_json) for record in latest
    }


def _result_messages(calls: Sequence[ToolCall], records: Sequence[ToolCallRecord]) -> tuple[Message, ...]:
    """Return the results as messages in the order of the calls. A repeated call gets its earlier result."""
    by_id = {record.id: record for record in records}
    by_key = {_call_key(record.name, record.arguments_json): record for record in records}
    pairs = [(call, by_id.get(call.id) or by_key.get(_call_key(call.name, call.arguments_json))) for call in calls]
    return tuple(
        Message(Role.TOOL, content=_result_of(call, record), tool_call_id=call.id, name=call.name)
        for call, record in pairs
        if record is not None
    )


def _result_of(call: ToolCall, record: ToolCallRecord) -> str:
    """Return the result of a call for the model, including the arguments if an approval changed them."""
    if record.id != call.id or record.arguments_json == call.arguments_json:
        return record.result
    return f"The call was approved with other arguments: {record.arguments_json}\n\n{record.result}"


def _call_key(name: str, arguments_json: str) -> tuple[str, str]:
    try:
        parse_json(arguments_json or "{}", is_rewritable=True)
    except JsonTextError:
        return name, arguments_json
    return name, canonical_json(arguments_json or "{}")


def _truncation_of(run: Run, enforcement: Enforcement) -> Failure | None:
    if run.output is None or not is_cut(run.request, run.output, enforcement):
        return None
    return truncation_of(run.request, run.output, run.max_tokens)


def _is_better(enforcement: Enforcement, best: Enforcement | None) -> bool:
    return best is None or len(enforcement.violations) <= len(best.violations)


def _retry(run: Run, enforcement: Enforcement, output: InferenceOutput, cut: Failure | None) -> Outcome | None:
    """Retry a truncated answer with a higher limit, or an invalid answer with feedback.

    Returns None if no retries are left, or if the limit cannot be raised.
    """
    if run.attempt > run.request.retry.max_retries:
        return None
    if cut is None:
        return _start_attempt(_with_feedback(run, enforcement, output), "validation failed")
    raised = raised_limit(run.request, output, run.max_tokens)
    if not raised:
        return None
    return _start_attempt(replace(run, max_tokens=raised), "the answer was cut")


def _with_feedback(run: Run, enforcement: Enforcement, output: InferenceOutput) -> Run:
    transcript = run.transcript
    if output.content:
        transcript += (Message(Role.ASSISTANT, content=output.content, reasoning=output.reasoning),)
    feedback = feedback_message([violation.message for violation in enforcement.violations])
    return replace(run, transcript=(*transcript, feedback), max_tokens=0)


def _start_attempt(run: Run, reason: str) -> Outcome:
    """Start the next attempt, and discard the text of the current attempt."""
    changed = replace(run, attempt=run.attempt + 1)
    retried = move(changed, State.EXECUTE, f"{reason}, a retry is left", infer(changed, run.attempt))
    return replace(retried, discarded=DiscardedAttempt(run.attempt, reason))
