"""Defines a request's options as keywords: the execution hints, and all other parts except the messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Any, TypedDict

from pagantic.constraint.v1 import contract_pb2
from pagantic.context.v1 import policy_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.orchestrator.v1 import approval_pb2, execution_pb2
from pagantic_common.codec.messages import SAFETIES, duration_to_proto, tool_choice_to_proto
from pagantic_common.domain.messages import ToolChoice, ToolChoiceMode, ToolSafety
from pagantic_common.domain.text.json_text import dump_json

# "auto", "required", "none", the name of a tool, or a whole choice; None leaves the choice to the system.
Choice = str | ToolChoice | None
REASONING_MODES = ("auto", "on", "off")
NO_EXPERIMENT = "none"
TOOL_ACTIONS = ("allow", "ask", "deny")
_SAFETY_CLASS = "safety:"
_PLAIN = (
    "max_tokens", "temperature", "top_p", "seed", "max_tool_rounds", "model", "top_k", "min_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "top_logprobs", "priority",
)  # fmt: skip


class Hints(TypedDict, total=False):
    """ExecutionHints as keywords. A missing hint selects the system's default.

    At `timeout_s`, the work ends with the results so far. `reasoning` is "auto", "on" or "off". `options` are fields
    for the engine of a remote model, which accepts its allowed_options; other models refuse all of them.
    """

    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    max_tool_rounds: int
    model: str
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    priority: int
    timeout_s: float
    stop: Sequence[str]
    logit_bias: Mapping[int, float]
    reasoning: str
    reasoning_max_tokens: int
    options: Mapping[str, Any]


class Options(Hints, total=False):
    """Hints, and the other parts of a request.

    `context` is the name of a collection or a whole policy. `rules` are CEL expressions by name, or whole rules.
    `semantic_intent` is the aim that a judging model checks. `max_retries` limits the attempts after the first.
    `citations` is True or a set of limits; it requests an answer in claims that quote the context, and makes `context`
    mandatory. `variant` selects the variant of an experiment as "experiment=variant", or "none" for no experiment.
    `tool_rules` map a tool's name, a pattern such as "send_*", or "safety:external" to "allow", "ask" or "deny".
    `keep_request` keeps the request and its steps with the execution, so that it can be replayed.
    """

    request_id: str
    context: str | policy_pb2.ContextPolicy
    rules: Mapping[str, str] | Sequence[contract_pb2.Rule]
    semantic_intent: str
    max_retries: int
    citations: bool | contract_pb2.Citations
    tool_rules: Mapping[str, str]
    variant: str
    keep_request: bool


def apply_options(
    request: execution_pb2.SystemRequest, options: Options, tool_choice: Choice = None
) -> execution_pb2.SystemRequest:
    """Set the options of a request, and return it. Raises TypeError for an unknown keyword."""
    _check_names(options)
    request.request_id = options.get("request_id") or ""
    request.keep_request = options.get("keep_request") or False
    request.semantic_intent = options.get("semantic_intent") or ""
    request.rules.extend(_rules_of(options.get("rules") or ()))
    request.tool_rules.extend(starmap(_tool_rule, (options.get("tool_rules") or {}).items()))
    set_variant(request, options.get("variant", ""))
    if (max_retries := options.get("max_retries")) is not None:
        request.retry.max_retries = max_retries
    if context := options.get("context"):
        if isinstance(context, str):
            context = policy_pb2.ContextPolicy(collection=context)
        request.context.CopyFrom(context)
    _apply_citations(request.output, options.get("citations"))
    _apply_hints(request.hints, options)
    if tool_choice:
        request.hints.tool_choice.CopyFrom(tool_choice_to_proto(_choice_of(tool_choice)))
    return request


def set_variant(request: execution_pb2.SystemRequest, text: str) -> None:
    """Set the variant of an experiment in a request. Raises ValueError if the text is malformed.

    An empty `text` changes nothing.

    Args:
        request: The request.
        text: "experiment=variant", or "none" for no experiment.
    """
    if not text:
        return
    experiment, sign, variant = text.partition("=")
    request.ClearField("variant")
    request.without_experiments = text == NO_EXPERIMENT
    if request.without_experiments:
        return
    if not (experiment and sign and variant):
        raise ValueError(f"variant is {text!r}: write EXPERIMENT=VARIANT, or {NO_EXPERIMENT} for no experiment")
    request.variant.CopyFrom(execution_pb2.ExperimentVariant(experiment=experiment, variant=variant))


def variant_text(variant: execution_pb2.ExperimentVariant) -> str:
    """Return a variant as "experiment=variant", or an empty string if the variant is unset."""
    if not variant.experiment:
        return ""
    return f"{variant.experiment}={variant.variant}"


def one_of(name: str, value: str, known: Iterable[str]) -> str:
    """Return the value. Raises ValueError, listing the known values, if the value is unknown."""
    names = list(known)
    if value not in names:
        raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(map(repr, names))}")
    return value


def several(name: str, texts: Sequence[str]) -> Sequence[str]:
    """Return the texts. Raises TypeError if `texts` is a single string, whose characters would count as texts."""
    if isinstance(texts, str):
        raise TypeError(f"{name} is the text {texts!r}: it must be a list of texts")
    return texts


def _check_names(options: Options) -> None:
    keywords = Options.__optional_keys__
    for unknown in sorted(options.keys() - keywords):
        hint = f"there are {', '.join(sorted(keywords))}"
        for near in difflib.get_close_matches(unknown, keywords, n=1):
            hint = f"did you mean {near!r}?"
        raise TypeError(f"unexpected keyword {unknown!r}: {hint}")


def _apply_citations(output: contract_pb2.OutputContract, citations: bool | contract_pb2.Citations | None) -> None:
    if isinstance(citations, contract_pb2.Citations):
        output.citations.CopyFrom(citations)
    elif citations:
        output.citations.SetInParent()


def _apply_hints(hints: execution_pb2.ExecutionHints, options: Options) -> None:
    for name in _PLAIN:
        if (value := options.get(name)) is not None:
            setattr(hints, name, value)
    hints.stop.extend(several("stop", options.get("stop") or ()))
    hints.logit_bias.update(options.get("logit_bias") or {})
    if timeout_s := options.get("timeout_s"):
        hints.timeout.CopyFrom(duration_to_proto(timeout_s))
    if engine := options.get("options"):
        hints.options_json = dump_json(dict(engine))
    if reasoning := options.get("reasoning"):
        mode = one_of("reasoning", reasoning, REASONING_MODES)
        hints.reasoning.mode = generation_pb2.ReasoningMode.Value(f"REASONING_MODE_{mode.upper()}")
    if (max_tokens := options.get("reasoning_max_tokens")) is not None:
        hints.reasoning.max_tokens = max_tokens


def _rules_of(rules: Mapping[str, str] | Sequence[contract_pb2.Rule]) -> list[contract_pb2.Rule]:
    if isinstance(rules, Mapping):
        return [contract_pb2.Rule(name=name, expression=expression) for name, expression in rules.items()]
    return list(rules)


def _tool_rule(subject: str, action: str) -> approval_pb2.ToolRule:
    chosen = one_of(f"the rule for {subject!r}", action, TOOL_ACTIONS)
    rule = approval_pb2.ToolRule(action=approval_pb2.ToolAction.Value(f"TOOL_ACTION_{chosen.upper()}"))
    safety = subject.removeprefix(_SAFETY_CLASS)
    if safety == subject:
        rule.tool = subject
    else:
        rule.safety = SAFETIES.to_proto(ToolSafety(one_of("the safety class", safety, map(str, ToolSafety))))
    return rule


def _choice_of(choice: str | ToolChoice) -> ToolChoice:
    if isinstance(choice, ToolChoice):
        return choice
    if choice in tuple(ToolChoiceMode):
        return ToolChoice(mode=ToolChoiceMode(choice))
    return ToolChoice(tool_name=choice)
