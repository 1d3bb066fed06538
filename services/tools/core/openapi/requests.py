"""Makes the request of a call: each argument goes to its place, and cannot leave it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from pagantic_common.domain.messages import ToolFailed
from services.tools.core.openapi.forms import Content, content_of
from services.tools.core.openapi.operations import BODY, PLACEHOLDER, Operation
from services.tools.core.openapi.parameters import Location, Parameter, Style
from services.tools.core.openapi.styles import Pairs, check_names, header_of, pairs_of, path_text_of

MAX_TARGET_CHARS = 8192
_SAFE_IN_PATH = "/%:@!$&'()*+,;=~"


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request; `target` is a path and a query, encoded, below the API's URL. `content` is None without a body."""

    method: str
    target: str
    headers: Mapping[str, str]
    content: Content | None


def build_request(operation: Operation, arguments: Mapping[str, Any], supplied_query: Mapping[str, str]) -> ApiRequest:
    """Return the request of a call whose arguments satisfy the schema. Raises ToolFailed for what cannot be written."""
    headers: dict[str, str] = {}
    filled: dict[str, str] = {}
    fixed = [*parse_qsl(operation.fixed_query, keep_blank_values=True), *supplied_query.items()]
    query = Pairs(_names_in(operation, Location.QUERY), fixed)
    for name, parameter in operation.arguments.items():
        value = arguments.get(name)
        if value is None:
            continue
        match parameter.location:
            case Location.PATH:
                _check_matrix_names(operation, parameter, value)
                filled[parameter.name] = path_text_of(parameter, value)
            case Location.HEADER:
                headers[parameter.name] = header_of(parameter, value)
            case Location.QUERY:
                query.add(parameter.name, pairs_of(parameter, value))
    target = _fill(operation.path, filled)
    if query.text:
        target += f"?{query.text}"
    if len(target) > MAX_TARGET_CHARS:
        raise ToolFailed(f"the address of the call would have {len(target)} characters, at most {MAX_TARGET_CHARS} fit")
    content = None
    if operation.body is not None and BODY in arguments:
        content = content_of(operation.body, arguments[BODY])
    return ApiRequest(operation.method.upper(), target, headers, content)


def _check_matrix_names(operation: Operation, parameter: Parameter, value: Any) -> None:
    """Raise ToolFailed if an exploded object would write the name of another parameter of the path."""
    if parameter.style is not Style.MATRIX or not parameter.explode or not isinstance(value, dict):
        return
    others = [name for name in _names_in(operation, Location.PATH) if name != parameter.name]
    check_names(parameter.name, value, others)


def _names_in(operation: Operation, location: Location) -> list[str]:
    return [parameter.name for parameter in operation.arguments.values() if parameter.location is location]


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
