"""Compiles sources to engine text, and finds the schema keywords that the engine cannot enforce."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.text.citations import CitationPolicy
from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.grammar.citations import engine_text_of_citations
from pagantic_common.grammar.engine_text import (
    GrammarError,
    GrammarTooComplexError,
    check_engine_text,
    engine_text_of_gbnf,
    engine_text_of_regex,
    engine_text_of_schema,
    engine_text_of_values,
)
from pagantic_common.grammar.json_schema import NO_SCHEMAS, SCHEMAS_BY_NAME, Schema, schema_for_engine, unenforceable_in
from services.constraint.core.model import Limits
from services.constraint.core.schema import open_schema, warnings_of

MAX_UNSUPPORTED = 200
_MAX_REASON_CHARS = 100
_ENTRY_BYTES = 200  # estimated size of an object and its dict entry
_UNSATISFIABLE = "Unsatisfiable schema"
_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*\])")
_UNKNOWN_FORMAT = re.compile(r"Unknown format: (.*)")


class SourceKind(StrEnum):
    """The kinds of sources that can be compiled."""

    SCHEMA = "schema"
    GRAMMAR = "grammar"
    NAMED_GRAMMAR = "named grammar"
    REGEX = "regex"
    VALUES = "values"
    CITATIONS = "list of cited sources"


@dataclass(frozen=True, slots=True)
class Source:
    """A source to compile. The text of a named grammar is its name.

    The text of values is a JSON array of strings. The text of citations is a JSON array that holds the citation policy
    and the texts to quote.
    """

    kind: SourceKind
    text: str

    @classmethod
    def of_values(cls, values: Sequence[str]) -> Source:
        """Return a source for a list of values."""
        return cls(SourceKind.VALUES, dump_json(list(values)))

    @classmethod
    def of_citations(cls, policy: CitationPolicy, texts: Sequence[str]) -> Source:
        """Return a source for texts to quote. Raises InvalidRequest if a bound is out of range."""
        policy.check("cited_sources.citations")
        return cls(SourceKind.CITATIONS, dump_json([asdict(policy), list(texts)]))

    @property
    def hash(self) -> str:
        """The SHA-256 hash of the kind and the text in hexadecimal."""
        return hashlib.sha256(f"{self.kind.value}\0{self.text}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A keyword that decoding does not enforce, and its location in the schema as a JSON pointer."""

    keyword: str
    path: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """The engine text of a source, the keywords that decoding does not enforce, and any warnings."""

    hash: str
    engine_text: str
    unsupported: tuple[Unsupported, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The estimated size in memory, in bytes."""
        listed = sum(len(keyword.keyword) + len(keyword.path) + _ENTRY_BYTES for keyword in self.unsupported)
        return _ENTRY_BYTES + sys.getsizeof(self.engine_text) + listed + sum(map(sys.getsizeof, self.warnings))


def compile_source(source: Source, limits: Limits) -> Compiled:
    """Compile a source. Raises InvalidRequest (CONFIG_INVALID, CONSTRAINT_GRAMMAR_INVALID, CONSTRAINT_TOO_COMPLEX)."""
    if source.kind is SourceKind.SCHEMA:
        return _compile_schema(source, limits)
    limits.check_source(source.text, source.kind.value)
    try:
        engine_text = _engine_text(source)
        if source.kind is not SourceKind.CITATIONS:  # the inference service checks this generated text
            check_engine_text(engine_text)
    except GrammarTooComplexError as error:
        message = f"the {source.kind.value} is too complex for the decoder: {error}"
        raise InvalidRequest(message, code=ErrorCode.CONSTRAINT_TOO_COMPLEX) from None
    except GrammarError as error:
        message = f"the {source.kind.value} cannot be compiled: {error}"
        raise InvalidRequest(message, code=ErrorCode.CONSTRAINT_GRAMMAR_INVALID) from None
    return Compiled(source.hash, engine_text)


def _engine_text(source: Source) -> str:
    match source.kind:
        case SourceKind.GRAMMAR:
            return engine_text_of_gbnf(source.text)
        case SourceKind.REGEX:
            return engine_text_of_regex(source.text)
        case SourceKind.CITATIONS:
            policy, texts = json.loads(source.text)
            return engine_text_of_citations(texts, CitationPolicy(**policy))
        case _:
            return engine_text_of_values(json.loads(source.text))


def _compile_schema(source: Source, limits: Limits) -> Compiled:
    schema, _ = open_schema(source.text, limits)
    warnings = warnings_of(schema)
    try:
        engine_text = engine_text_of_schema(source.text)
        check_engine_text(engine_text)
    except GrammarError:
        pass
    else:
        return Compiled(source.hash, engine_text, tuple(_unenforceable(schema))[:MAX_UNSUPPORTED], warnings)
    try:
        engine_text = engine_text_of_schema(source.text, lenient=True)
        objections = check_engine_text(engine_text)
    except GrammarError as error:
        if str(error).startswith(_UNSATISFIABLE):
            reason = str(error).removeprefix(_UNSATISFIABLE).lstrip(" :")
            raise InvalidRequest(f"no JSON satisfies the schema{reason and f': {reason}'}") from None
        return _compile_type(source, schema, str(error))
    unsupported = _unenforceable(schema)
    unsupported += [place for objection in objections for place in _places_of(objection, schema_for_engine(schema))]
    return Compiled(source.hash, engine_text, tuple(dict.fromkeys(unsupported))[:MAX_UNSUPPORTED], warnings)


def _compile_type(source: Source, schema: Schema, reason: str) -> Compiled:
    """Compile only the type of a schema that the engine cannot express. Later stages check the rest."""
    warnings = warnings_of(schema)
    schema = schema_for_engine(schema)
    kept: dict[str, Any] = {}
    if isinstance(schema, dict) and "type" in schema:
        kept = {"type": schema["type"]}
    engine_text = engine_text_of_schema(json.dumps(kept))
    check_engine_text(engine_text)
    unsupported = Unsupported(" ".join(reason.split())[:_MAX_REASON_CHARS], "")
    return Compiled(source.hash, engine_text, (unsupported,), warnings)


def _places_of(warning: str, schema: Schema) -> list[Unsupported]:
    """Locate the keywords of an engine warning. An unknown warning applies to the whole schema."""
    if match := _UNIMPLEMENTED.match(warning):
        keys = set(json.loads(match.group(1)))
        unsupported = _find(schema, lambda key, _: key in keys)
    elif match := _UNKNOWN_FORMAT.match(warning):
        name = match.group(1)
        unsupported = _find(schema, lambda key, value: key == "format" and value == name)
    elif warning.startswith("oneOf"):
        unsupported = _find(schema, lambda key, _: key == "oneOf")
    else:
        unsupported = []
    return unsupported or [Unsupported(warning[:_MAX_REASON_CHARS], "")]


def _unenforceable(schema: Schema) -> list[Unsupported]:
    schema = schema_for_engine(schema)
    return _find(schema, unenforceable_in(schema))


def _find(schema: Any, is_wanted: Callable[[str, Any], bool]) -> list[Unsupported]:
    return [Unsupported(key, path) for path, key, value in _keywords(schema) if is_wanted(key, value)]


def _keywords(schema: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the JSON pointer, name and value of every keyword in every subschema, in document order."""
    waiting: list[tuple[str, Any]] = [("", schema)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, list):
            waiting += [(f"{path}/{index}", item) for index, item in reversed(list(enumerate(value)))]
        if not isinstance(value, dict):
            continue
        children: list[tuple[str, Any]] = []
        for key, item in value.items():
            pointer = f"{path}/{_escape(key)}"
            yield pointer, key, item
            if key in SCHEMAS_BY_NAME and isinstance(item, dict):
                children += [(f"{pointer}/{_escape(name)}", child) for name, child in item.items()]
            elif key not in NO_SCHEMAS:
                children.append((pointer, item))
        waiting += reversed(children)


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
