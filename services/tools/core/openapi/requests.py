"""Builds the request of a call. An argument cannot affect other parts of the request than its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from pagantic_common.domain.messages import ToolFailed
from services.tools.core.openapi.forms import Content, content_of
from services.tools.core.openapi.operations import PLACEHOLDER, Operation, leads_elsewhere
from services.tools.core.openapi.parameters import BODY, Location, Parameter, Style
from services.tools.core.openapi.styles import Pairs, check_names, header_of, pairs_of, path_text_of

MAX_TARGET_CHARS = 8192
_MATRIX_NAME = re.compile(r";([^;/={}]*)")
_SAFE_IN_PATH = "/%:@!$&'()*+,;=~"


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request. `target` is the encoded path and query below the API's URL. `content` is None without a body."""

    method: str
    target: str
    headers: Mapping[str, str]
    content: Content | None


def build_request(operation: Operation, arguments: Mapping[str, Any], supplied_query: Mapping[str, str]) -> ApiRequest:
    """Return the request of a call with valid arguments. Raises ToolFailed if a value cannot be encoded."""
    headers: dict[str, str] = {}
    filled: dict[str, str] = {}
    query = Pairs(_names_in(operation, Location.QUERY), [*operation.fixed_query, *supplied_query.items()])
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
                query.add(parameter.name, name, pairs_of(parameter, value))
    target = _fill(operation, filled)
    if query.text:
        target += f"?{query.text}"
    if len(target) > MAX_TARGET_CHARS:
        raise ToolFailed(f"the address of the call would have {len(target)} characters, at most {MAX_TARGET_CHARS} fit")
    content = None
    if operation.body is not None and BODY in arguments:
        content = content_of(operation.body, arguments[BODY])
    return ApiRequest(operation.method.upper(), target, headers, content)


def _check_matrix_names(operation: Operation, parameter: Parameter, value: Any) -> None:
    """Raise ToolFailed if an exploded object would write a name of another parameter or of the path."""
    if parameter.style is not Style.MATRIX or not parameter.explode or not isinstance(value, dict):
        return
    others = {name for name in _names_in(operation, Location.PATH) if name != parameter.name}
    literals = {unquote(name) for name in _MATRIX_NAME.findall(operation.path)}
    check_names(parameter.argument, value, others | literals)


def _names_in(operation: Operation, location: Location) -> list[str]:
    return [parameter.name for parameter in operation.arguments.values() if parameter.location is location]


def _fill(operation: Operation, values: Mapping[str, str]) -> str:
    """Fill a path with its values. Raises ToolFailed for an empty value or a segment that leads to another path."""
    for name, parameter in operation.arguments.items():
        if parameter.location is Location.PATH and not values.get(parameter.name):
            raise ToolFailed(f"argument {name!r} is empty: it is a part of the path")
    parts = PLACEHOLDER.split(operation.path)
    for number, part in enumerate(parts):
        is_name = number % 2 == 1
        parts[number] = values[part] if is_name else quote(part, safe=_SAFE_IN_PATH)
    filled = "".join(parts)
    if leads_elsewhere(filled):
        raise ToolFailed("the path of the call would have a segment '.' or '..': give another value")
    return filled
