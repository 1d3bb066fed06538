"""Reads the operations of an OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, unquote

from pagantic_common.domain.messages import ToolSafety
from pagantic_common.domain.text.json_text import dump_json
from services.tools.core.openapi.bodies import Body, BodyReader
from services.tools.core.openapi.parameters import (
    BODY,
    Location,
    Parameter,
    Supplied,
    name_arguments,
    read_parameters,
)
from services.tools.core.openapi.references import References, Unusable, shorten
from services.tools.core.openapi.schemas import MAX_DESCRIPTION_CHARS, SchemaTranslator, cut

MAX_TOOL_DESCRIPTION_CHARS = 1024
_MAX_NAME_CHARS = 256
_METHODS = ("get", "put", "post", "delete", "patch", "head", "options", "trace")
_WITHOUT_ANSWER = frozenset({"head", "options", "trace"})
_IDEMPOTENT = frozenset({"get", "put", "delete"})
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_OTHER = re.compile(r"[^A-Za-z0-9]+")

Problem = tuple[tuple[str | int, ...], str]
"""A place in a document that breaks the standard, and how."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that can be a tool. `arguments` are its parameters by the argument names of the tool.

    `fixed_query` holds the pairs after a '?' in the document's path. The standard forbids them, but large APIs have
    them. `left_out` holds the optional properties of a form that cannot be sent, with the reasons.
    """

    name: str
    method: str
    path: str
    fixed_query: tuple[tuple[str, str], ...]
    description: str
    arguments: Mapping[str, Parameter]
    body: Body | None
    left_out: Mapping[str, str]
    parameters_json: str

    @property
    def safety(self) -> ToolSafety:
        """The safety class of the operation.

        It is READ for GET, which changes nothing (RFC 9110, section 9.2.1), and EXTERNAL for other methods.
        """
        return ToolSafety.READ if self.method == "get" else ToolSafety.EXTERNAL

    @property
    def is_idempotent(self) -> bool:
        """Whether a second call has no further effects (RFC 9110, section 9.2.2)."""
        return self.method in _IDEMPOTENT


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An operation that cannot be a tool, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class OperationReader:
    """Reads operations of a document. `problems` lists the violations of the standard by path."""

    references: References
    is_version_3_0: bool
    problems: Mapping[str, Collection[Problem]] = field(default_factory=dict)
    supplied: Supplied = field(default_factory=Supplied)

    def read(self, entry: OperationEntry) -> Operation | LeftOut:
        """Return the operation, or the reason why it cannot be a tool."""
        try:
            self.references.budget.start_operation()
            return self._read(entry)
        except Unusable as reason:
            return LeftOut(entry.name, str(reason))

    def _read(self, entry: OperationEntry) -> Operation:
        if entry.method in _WITHOUT_ANSWER:
            raise Unusable(f"{entry.method.upper()} has no answer for a model")
        _check_place(entry)
        self._check_standard(entry)
        lists = [entry.path_item.get("parameters", []), entry.value.get("parameters", [])]
        path, _, query = entry.path.partition("?")
        fixed_query = tuple(parse_qsl(query, keep_blank_values=True))
        supplied = replace(self.supplied, query=self.supplied.query | dict(fixed_query).keys())
        parameters = read_parameters(lists, self.references, supplied)
        _check_path_parameters(path, parameters)
        body = self._read_body(entry)
        left_out = {} if body is None else body.left_out
        if body is not None and not body.is_argument:
            body = None
        arguments = name_arguments(parameters, [BODY] if body else [])
        return Operation(
            name=entry.name,
            method=entry.method,
            path=path,
            fixed_query=fixed_query,
            description=_description_of(entry),
            arguments=arguments,
            body=body,
            left_out=left_out,
            parameters_json=self._schema_of(arguments, body),
        )

    def _schema_of(self, arguments: Mapping[str, Parameter], body: Body | None) -> str:
        """Return the schema of a tool's arguments as JSON."""
        translator = SchemaTranslator(self.references, is_version_3_0=self.is_version_3_0)
        properties = {name: _schema_of_parameter(translator, parameter) for name, parameter in arguments.items()}
        required = [name for name, parameter in arguments.items() if parameter.is_required]
        if body is not None:
            properties[BODY] = translator.translate(body.schema)
            required += [BODY] if body.is_required else []
        schema = _object_schema(properties, required, translator.definitions)
        self.references.budget.spend_text(schema)
        return schema

    def _check_standard(self, entry: OperationEntry) -> None:
        """Raise Unusable if a part that calls need violates the standard. Violations in other parts do not matter."""
        for place, words in self.problems.get(entry.path, ()):
            rest = place[2:]
            if rest[:1] == (entry.method,):
                rest = rest[1:]
            elif rest[:1] != ("parameters",):
                continue
            if not rest or rest[0] in {"parameters", "requestBody"}:
                where = ".".join(map(str, place[2:]))
                raise Unusable(f"it breaks the standard at {shorten(where)!r}: {words}")

    def _read_body(self, entry: OperationEntry) -> Body | None:
        if "requestBody" not in entry.value:
            return None
        return BodyReader(self.references, self.is_version_3_0).read(entry.method, entry.value["requestBody"])


@dataclass(frozen=True, slots=True)
class OperationEntry:
    """An operation with its location in the document."""

    name: str
    method: str
    path: str
    path_item: Mapping[str, Any]
    value: Mapping[str, Any]


def list_operations(document: Mapping[str, Any], references: References) -> Iterator[OperationEntry | LeftOut]:
    """Yield the operations in the document's order. An unreadable path is left out as a whole."""
    paths = document.get("paths")
    if not isinstance(paths, dict):
        return
    for path, item in paths.items():
        if path.startswith("x-"):
            continue
        try:
            path_item = references.resolve(item, "path")
        except Unusable as reason:
            yield LeftOut(shorten(path), str(reason))
            continue
        for method in _METHODS:
            value = path_item.get(method)
            if isinstance(value, dict):
                yield OperationEntry(_name_of(method, path, value), method, path, path_item, value)
            elif value is not None:
                yield LeftOut(_name_of(method, path, {}), "it is not an object")


def _name_of(method: str, path: str, operation: Mapping[str, Any]) -> str:
    name = operation.get("operationId")
    if isinstance(name, str) and 0 < len(name) <= _MAX_NAME_CHARS:
        return name
    return f"{method}_{_OTHER.sub('_', path).strip('_')}"


def _check_place(entry: OperationEntry) -> None:
    """Raise Unusable if an operation is not below the configured URL."""
    if "servers" in entry.value or "servers" in entry.path_item:
        raise Unusable("it has servers of its own, and only the configured url is called")
    path, _, query = entry.path.partition("?")
    if not path.startswith("/") or "{" in query or "#" in entry.path or not entry.path.isprintable():
        raise Unusable(
            f"its path {shorten(entry.path)!r} must begin with '/', without a fragment or a query of parameters"
        )
    if leads_elsewhere(path):
        raise Unusable(f"its path {shorten(entry.path)!r} has a segment '.' or '..'")


def leads_elsewhere(path: str) -> bool:
    """Return whether a path has a segment, such as `..`, that a server would resolve."""
    return any(unquote(segment) in {".", ".."} for segment in path.split("/"))


def _check_path_parameters(path: str, parameters: Collection[Parameter]) -> None:
    names_in_path = PLACEHOLDER.findall(path)
    names = [parameter.name for parameter in parameters if parameter.location is Location.PATH]
    for name in {*names_in_path} ^ {*names}:
        raise Unusable(f"its path {shorten(path)!r} and its parameters do not agree about {shorten(name)!r}")


def _schema_of_parameter(translator: SchemaTranslator, parameter: Parameter) -> Any:
    schema = translator.translate(parameter.schema)
    description = cut(parameter.description, MAX_DESCRIPTION_CHARS)
    if not description or not isinstance(schema, dict):
        return schema
    return {**schema, "description": description}


def _object_schema(properties: Mapping[str, Any], required: list[str], definitions: Mapping[str, Any]) -> str:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    if definitions:
        schema["$defs"] = definitions
    return dump_json(schema)


def _description_of(entry: OperationEntry) -> str:
    texts = [entry.value.get(key) for key in ("summary", "description")]
    texts = [cut(text, MAX_TOOL_DESCRIPTION_CHARS) for text in texts if isinstance(text, str)]
    words = "\n".join(filter(None, texts))
    return cut(words or f"{entry.method.upper()} {entry.path}", MAX_TOOL_DESCRIPTION_CHARS)
