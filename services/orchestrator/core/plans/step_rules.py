"""Rules for the inputs, the output and the parameters of each kind of step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from pagantic_common.grammar.schema_validator import SchemaError, check_schema
from services.orchestrator.core.model.plan import MAX_STEP_TIMEOUT_S, STEP_NAME, StepKind, ValueKind
from services.orchestrator.core.model.retrieval import Retriever
from services.orchestrator.core.plans.ranking import check_ranking

RETRIEVER_OF: Mapping[str, Retriever] = MappingProxyType(
    {
        "bm25": Retriever.BM25,
        "keyword": Retriever.KEYWORD,
        "vector": Retriever.VECTOR,
        "hybrid": Retriever.HYBRID,
    }
)
NAME_OF_RETRIEVER: Mapping[Retriever, str] = MappingProxyType({value: name for name, value in RETRIEVER_OF.items()})
RETRIEVERS = tuple(RETRIEVER_OF)
WAITS_FOR = ("signal", "duration_s", "until")
MAX_PAYLOAD_SCHEMA_CHARS = 16_384
RANGES: Mapping[str, tuple[float, float]] = {
    "max_tokens": (0, 2**31 - 1),
    "max_chunks": (0, 2**31 - 1),
    "top_k": (0, 2**31 - 1),
    "temperature": (0, 2),
    "top_p": (1e-9, 1),
    "seed": (0, 2**64 - 1),
    "min_score": (-1e300, 1e300),
    "diversity": (0, 1),
    "max_per_source": (0, 2**31 - 1),
    "duration_s": (0, MAX_STEP_TIMEOUT_S),
    "timeout_s": (0, MAX_STEP_TIMEOUT_S),
}

_Types = tuple[type, ...]
_NUMBER: _Types = (int, float)
_ANY = frozenset(ValueKind)
_TEXTS = frozenset({ValueKind.TEXT, ValueKind.RAW_JSON})


@dataclass(frozen=True, slots=True)
class KindRules:
    """The rules of one kind of step.

    Attributes:
        takes: The kinds of values that a step accepts.
        gives: The kind of its output, or None if the output has the kind of its input.
        needed: Required parameters with their types.
        optional: Optional parameters with their types.
        is_checked: Whether its output can have a contract.
        takes_many: Whether the step accepts several values at once.
    """

    takes: frozenset[ValueKind]
    gives: ValueKind | None
    needed: Mapping[str, _Types] = field(default_factory=dict)
    optional: Mapping[str, _Types] = field(default_factory=dict)
    is_checked: bool = False
    takes_many: bool = False

    def gives_of(self, taken: ValueKind) -> ValueKind:
        """Return the kind of a step's output, given the kind of its input."""
        return self.gives or taken

    @property
    def parameters(self) -> Mapping[str, _Types]:
        """All parameters, required and optional, with their types."""
        return {**self.needed, **self.optional}


RULES: Mapping[StepKind, KindRules] = MappingProxyType(
    {
        StepKind.INFER: KindRules(
            takes=_ANY,
            gives=ValueKind.TEXT,
            optional={
                "prompt": (str,),
                "tools": (list,),
                "tool_choice": (str,),
                "model": (str,),
                "max_tokens": (int,),
                "temperature": _NUMBER,
                "top_p": _NUMBER,
                "seed": (int,),
            },
            is_checked=True,
            takes_many=True,
        ),
        StepKind.TOOL: KindRules(
            takes=_TEXTS,
            gives=ValueKind.TOOL_RESULTS,
            needed={"tool": (str,)},
            optional={"arguments": (dict,), "argument": (str,)},
        ),
        StepKind.VALIDATE: KindRules(takes=_TEXTS, gives=None, is_checked=True),
        StepKind.RETRIEVE: KindRules(
            takes=frozenset({ValueKind.TEXT}),
            gives=ValueKind.CONTEXT,
            needed={"collection": (str,)},
            optional={"max_chunks": (int,), "min_score": _NUMBER, "retriever": (str,)},
        ),
        StepKind.RERANK: KindRules(
            takes=frozenset({ValueKind.CONTEXT, ValueKind.CANDIDATES}),
            gives=None,
            optional={
                "query": (str,),
                "scorer": (str,),
                "top_k": (int,),
                "min_score": _NUMBER,
                "scorers": (list,),
                "fusion": (str,),
                "diversity": _NUMBER,
                "max_per_source": (int,),
            },
        ),
        StepKind.WAIT: KindRules(
            takes=_ANY,
            gives=ValueKind.RAW_JSON,
            optional={
                "signal": (str,),
                "payload_schema": (dict,),
                "timeout_s": _NUMBER,
                "duration_s": _NUMBER,
                "until": (str,),
                "reason": (str,),
            },
            takes_many=True,
        ),
    }
)
CHECKED = frozenset(kind for kind, rules in RULES.items() if rules.is_checked)

# A registered kind accepts any value as text, and returns text.
_CUSTOM = KindRules(takes=_ANY, gives=ValueKind.TEXT, takes_many=True)


def rules_of(kind: str) -> KindRules:
    """Return the rules of a kind of step."""
    if kind not in tuple(StepKind):
        return _CUSTOM
    return RULES[StepKind(kind)]


def check_parameters(kind: StepKind, parameters: Mapping[str, Any]) -> str:
    """Return the reason that a step's parameters are invalid, or an empty string if they are valid."""
    rules = RULES[kind]
    for name in rules.needed:
        if name not in parameters:
            return f"needs the parameter {name!r}"
    for name, value in parameters.items():
        wrong = _check_parameter(name, value, rules.parameters)
        if wrong:
            return wrong
    if parameters.get("retriever", RETRIEVERS[0]) not in RETRIEVERS:
        return f"has a 'retriever' that is not known; there are {', '.join(RETRIEVERS)}"
    if not all(isinstance(tool, str) for tool in parameters.get("tools", [])):
        return "has 'tools' that are not names"
    if kind is StepKind.WAIT:
        return _check_wait(parameters)
    return check_ranking(parameters)


def _check_wait(parameters: Mapping[str, Any]) -> str:
    """Return the reason that the parameters of a wait are invalid, or an empty string if they are valid."""
    if len(set(WAITS_FOR) & set(parameters)) != 1:
        return f"needs exactly one of the parameters {', '.join(map(repr, WAITS_FOR))}"
    if "signal" not in parameters and not parameters.keys().isdisjoint(("payload_schema", "timeout_s")):
        return "has a 'payload_schema' or a 'timeout_s', which only a wait for a 'signal' takes"
    if not STEP_NAME.fullmatch(parameters.get("signal", "signal")):
        return "has a 'signal' that is not of 1 to 64 of the characters A-Z a-z 0-9 . _ : -"
    if "until" in parameters and read_time(parameters["until"]) is None:
        return "has an 'until' that is not a time with its offset, such as 2027-01-31T09:00:00Z"
    try:
        check_schema(parameters.get("payload_schema", {}), MAX_PAYLOAD_SCHEMA_CHARS)
    except SchemaError as error:
        return f"has a 'payload_schema' that {error}"
    return ""


def read_time(text: str) -> datetime | None:
    """Parse a time by RFC 3339; None if the text is not a time or has no offset."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _check_parameter(name: str, value: Any, known: Mapping[str, _Types]) -> str:
    if name not in known:
        return f"has the parameter {name!r}, which its kind does not take; it takes {', '.join(known) or 'none'}"
    types = known[name]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        return f"has {name!r} of a wrong type: it must be {' or '.join(expected.__name__ for expected in types)}"
    return _check_range(name, value)


def _check_range(name: str, value: Any) -> str:
    if name not in RANGES:
        return ""
    low, high = RANGES[name]
    if low <= value <= high:
        return ""
    return f"has {name!r} out of range: it must be between {low:g} and {high:g}"
