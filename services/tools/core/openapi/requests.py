"""Writes the arguments of a call into the parts of a request, in the styles of their parameters (RFC 6570)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from pagantic_common.domain.messages import ToolFailed
from pagantic_common.domain.text.json_text import dump_json
from services.tools.core.openapi.operations import BODY, PLACEHOLDER, Operation
from services.tools.core.openapi.parameters import Location, Parameter, Style

MAX_TARGET_CHARS = 8192
_SAFE_IN_PATH = "/%:@!$&'()*+,;=~"
_SEPARATORS = {Style.FORM: ",", Style.DEEP_OBJECT: ",", Style.SPACE_DELIMITED: "%20", Style.PIPE_DELIMITED: "%7C"}

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request; `target` is a path and a query, encoded, below the API's URL. `body` is JSON, None for none."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: str | None


def build_request(operation: Operation, arguments: Mapping[str, Any], supplied_query: Mapping[str, str]) -> ApiRequest:
    """Return the request of a call whose arguments satisfy the schema. Raises ToolFailed for what cannot be written."""
    headers: dict[str, str] = {}
    filled: dict[str, str] = {}
    query = _Query([*parse_qsl(operation.fixed_query, keep_blank_values=True), *supplied_query.items()])
    for name, parameter in operation.arguments.items():
        value = arguments.get(name)
        if value is None:
            continue
        match parameter.location:
            case Location.PATH:
                filled[parameter.name] = _simple(parameter, value, _encode)
            case Location.HEADER:
                headers[parameter.name] = _header(parameter, value)
            case Location.QUERY:
                query.add(parameter, value)
    target = _fill(operation.path, filled) + query.text
    if len(target) > MAX_TARGET_CHARS:
        raise ToolFailed(f"the address of the call would have {len(target)} characters, at most {MAX_TARGET_CHARS} fit")
    body = None
    if operation.body_type is not None and BODY in arguments:
        body = dump_json(arguments[BODY])
    return ApiRequest(operation.method.upper(), target, headers, body)


class _Query:
    """A query in the making. No argument can write a name that is fixed, or that another argument has written."""

    def __init__(self, fixed: Iterable[Pair]) -> None:
        self._pairs = [(_encode(name), _encode(value)) for name, value in fixed]
        self._names = {name for name, _ in self._pairs}

    @property
    def text(self) -> str:
        """The query with its question mark; empty without parameters."""
        if not self._pairs:
            return ""
        return "?" + "&".join(f"{name}={value}" for name, value in self._pairs)

    def add(self, parameter: Parameter, value: Any) -> None:
        """Write a parameter. Raises ToolFailed."""
        pairs = list(_pairs_of(parameter, value))
        names = {name for name, _ in pairs}
        if clash := names & self._names:
            raise ToolFailed(f"argument {parameter.name!r} must not have the name {min(clash)[:80]!r}, which is taken")
        self._names |= names
        self._pairs += pairs


def _pairs_of(parameter: Parameter, value: Any) -> Iterator[Pair]:
    """Yield the names and values of a query parameter, encoded."""
    name = _encode(parameter.name)
    if parameter.style is Style.JSON:
        yield name, _encode(dump_json(value))
    elif isinstance(value, dict):
        yield from _pairs_of_object(parameter, name, value)
    elif isinstance(value, list):
        items = [_encode(_text(parameter, item)) for item in value]
        if not parameter.explode:
            items = [_SEPARATORS[parameter.style].join(items)]
        yield from ((name, item) for item in items)
    else:
        yield name, _encode(_text(parameter, value))


def _pairs_of_object(parameter: Parameter, name: str, value: Mapping[str, Any]) -> Iterator[Pair]:
    items = [(_encode(key), _encode(_text(parameter, item))) for key, item in value.items()]
    if parameter.style is Style.DEEP_OBJECT:
        yield from ((f"{name}%5B{key}%5D", text) for key, text in items)
    elif parameter.explode:
        yield from items
    else:
        yield name, _SEPARATORS[parameter.style].join(part for item in items for part in item)


def _header(parameter: Parameter, value: Any) -> str:
    text = _simple(parameter, value, str)
    if not is_header_text(text):
        raise ToolFailed(f"argument {parameter.name!r} goes into a header: only printable ASCII characters fit")
    return text


def is_header_text(text: str) -> bool:
    """Tell whether a text can be the value of a header."""
    return text.isascii() and text.isprintable()


def _simple(parameter: Parameter, value: Any, encode: Callable[[str], str]) -> str:
    """Write a value in the style `simple`: items are separated by commas, which are not encoded."""
    if parameter.style is Style.JSON:
        return encode(dump_json(value))
    if isinstance(value, dict):
        sign = "=" if parameter.explode else ","
        return ",".join(f"{encode(key)}{sign}{encode(_text(parameter, item))}" for key, item in value.items())
    if isinstance(value, list):
        return ",".join(encode(_text(parameter, item)) for item in value)
    return encode(_text(parameter, value))


def _text(parameter: Parameter, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        raise ToolFailed(
            f"argument {parameter.name!r} has a list or an object inside another, which {parameter.style} cannot write"
        )
    return dump_json(value)


def _fill(path: str, values: Mapping[str, str]) -> str:
    """Return a path with its values. None may be empty, and no segment may lead to another path."""
    parts = PLACEHOLDER.split(path)
    for number, part in enumerate(parts):
        is_name = number % 2 == 1
        if is_name and not values.get(part):
            raise ToolFailed(f"argument {part!r} is empty: it is a part of the path")
        parts[number] = values[part] if is_name else quote(part, safe=_SAFE_IN_PATH)
    filled = "".join(parts)
    if any(unquote(segment) in {".", ".."} for segment in filled.split("/")):
        raise ToolFailed("the path of the call would have a segment '.' or '..': give another value")
    return filled


def _encode(text: str) -> str:
    return quote(text, safe="", errors="replace")
