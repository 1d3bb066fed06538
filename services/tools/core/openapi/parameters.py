"""Reads the parameters of operations: the location and the encoding of each parameter."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from services.tools.core.openapi.media_types import json_type_of
from services.tools.core.openapi.references import References, Unusable, shorten

BODY = "body"
"""The argument that is the body."""

# The standard leaves these headers to media types and security schemes. Callers may not set connection headers.
_IGNORED_HEADERS = frozenset({"accept", "content-type", "authorization"})
_FORBIDDEN_HEADERS = frozenset(
    {
        *("host", "cookie", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"),
        *("keep-alive", "expect", "proxy-authorization", "proxy-connection", "accept-encoding", "content-encoding"),
        *("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    }
)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")


class Location(StrEnum):
    """The part of a request that holds a parameter."""

    PATH = "path"
    QUERY = "query"
    HEADER = "header"


class Style(StrEnum):
    """The encodings of a parameter. JSON is a media type, not a style of the standard."""

    SIMPLE = "simple"
    MATRIX = "matrix"
    LABEL = "label"
    FORM = "form"
    SPACE_DELIMITED = "spaceDelimited"
    PIPE_DELIMITED = "pipeDelimited"
    DEEP_OBJECT = "deepObject"
    JSON = "json"


# The first style of a location is its default.
_STYLES: Mapping[Location, tuple[Style, ...]] = {
    Location.PATH: (Style.SIMPLE, Style.MATRIX, Style.LABEL),
    Location.QUERY: (Style.FORM, Style.SPACE_DELIMITED, Style.PIPE_DELIMITED, Style.DEEP_OBJECT),
    Location.HEADER: (Style.SIMPLE,),
}


@dataclass(frozen=True, slots=True)
class Supplied:
    """The headers (in lower case) and query parameters that the deployment sends with each request."""

    headers: frozenset[str] = frozenset()
    query: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter. `argument` is the name that models use, and `schema` is the document's schema."""

    name: str
    argument: str
    location: Location
    style: Style
    explode: bool
    is_required: bool
    description: str
    schema: Any


def read_parameters(lists: Iterable[Any], references: References, supplied: Supplied) -> list[Parameter]:
    """Return the parameters in the lists of a path and its operation.

    A later parameter replaces an earlier parameter of the same name. Leaves out parameters supplied by the deployment,
    and optional parameters that callers may not set. Raises Unusable.
    """
    entries: dict[tuple[str, str], Mapping[str, Any]] = {}
    for parameters in lists:
        if not isinstance(parameters, list):
            raise Unusable("its parameters are not a list")
        references.budget.spend(len(parameters))
        for item in parameters:
            entry = references.resolve(item, "parameter")
            name, location = entry.get("name"), entry.get("in")
            if not isinstance(name, str) or not isinstance(location, str) or not name:
                raise Unusable("a parameter has no name or no location")
            if name == "$ref":
                raise Unusable("a parameter has the name '$ref', which is not distinguished from a reference")
            entries[name, location] = entry
    return [
        read_parameter(entry)
        for (name, location), entry in entries.items()
        if _is_settable(name, location, entry, supplied)
    ]


def _is_settable(name: str, location: str, entry: Mapping[str, Any], supplied: Supplied) -> bool:
    is_required = entry.get("required") is True
    if location == "cookie":
        if is_required:
            raise Unusable(f"it needs the cookie {shorten(name)!r}, and no cookies are sent")
        return False
    if location == "query":
        return name not in supplied.query
    if location != "header":
        return True
    if _HEADER_NAME.fullmatch(name) is None:
        if is_required:
            raise Unusable(f"it needs the header {shorten(name)!r}, which is no name of a header")
        return False
    name = name.lower()
    if name in _FORBIDDEN_HEADERS and is_required and name not in supplied.headers:
        raise Unusable(f"it needs the header {name!r}, which callers may not set")
    return name not in _FORBIDDEN_HEADERS | _IGNORED_HEADERS | supplied.headers


def read_parameter(entry: Mapping[str, Any]) -> Parameter:
    """Parse a parameter whose name and location are text. Raises Unusable."""
    shown = shorten(entry["name"])
    try:
        location = Location(entry["in"])
    except ValueError:
        raise Unusable(f"parameter {shown!r} is in {shorten(entry['in'])!r}, which is not supported") from None
    style, schema = _style_of(entry, location, shown)
    explode = entry.get("explode")
    if not isinstance(explode, bool):
        explode = style is Style.FORM
    if style is Style.DEEP_OBJECT:
        explode = True
    if explode and style in {Style.SPACE_DELIMITED, Style.PIPE_DELIMITED}:
        style = Style.FORM  # the standard requires a name for each value, as in the style form
    description = entry.get("description")
    return Parameter(
        name=entry["name"],
        argument=entry["name"],
        location=location,
        style=style,
        explode=explode,
        is_required=entry.get("required") is True or location is Location.PATH,
        description=description if isinstance(description, str) else "",
        schema=schema,
    )


def _style_of(entry: Mapping[str, Any], location: Location, shown: str) -> tuple[Style, Any]:
    if "content" in entry:
        return Style.JSON, _schema_of_content(entry["content"], f"parameter {shown!r}")
    styles = _STYLES[location]
    style = entry.get("style", styles[0])
    if style not in list(styles):
        supported = ", ".join(styles)
        raise Unusable(
            f"parameter {shown!r} has style {shorten(str(style))!r}: in a {location}, {supported} are supported"
        )
    return Style(style), entry.get("schema", {})


def _schema_of_content(content: Any, owner: str) -> Any:
    media_type = json_type_of(content)
    if media_type is None:
        raise Unusable(f"{owner} is not JSON, which is not supported")
    return content[media_type].get("schema", {})


def name_arguments(parameters: Iterable[Parameter], taken: Collection[str]) -> dict[str, Parameter]:
    """Return parameters by argument name: the parameter's name, plus its location if the name is taken."""
    arguments: dict[str, Parameter] = {}
    for parameter in parameters:
        name = parameter.name
        if name in taken or name in arguments:
            name = f"{name}_{parameter.location}"
        if name in taken or name in arguments:
            raise Unusable(f"two parameters would be called {shorten(name)!r}")
        arguments[name] = replace(parameter, argument=name)
    return arguments
