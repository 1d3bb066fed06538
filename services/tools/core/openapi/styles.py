"""Writes values in the styles of parameters (RFC 6570).

Separators within a value are encoded, or rejected if the style or the location has no encoding for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

from pagantic_common.domain.messages import ToolFailed
from pagantic_common.domain.text.json_text import dump_json
from services.tools.core.openapi.parameters import Parameter, Style

_SEPARATORS = {Style.FORM: ",", Style.DEEP_OBJECT: ",", Style.SPACE_DELIMITED: "%20", Style.PIPE_DELIMITED: "%7C"}

Pair = tuple[str, str]


class Pairs:
    """The encoded pairs of a query or form. An argument may not write a fixed name or another argument's name."""

    def __init__(self, arguments: Iterable[str], fixed: Iterable[Pair] = ()) -> None:
        self._pairs: list[Pair] = []
        self._names: set[str] = set()
        self._arguments = set(arguments)
        for name, value in fixed:
            self._names.add(name)
            self._pairs.append((encode(name), encode(value)))

    @property
    def text(self) -> str:
        """The pairs as the text of a query or a URL-encoded form."""
        return "&".join(f"{name}={value}" for name, value in self._pairs)

    def add(self, name: str, argument: str, pairs: Iterable[Pair]) -> None:
        """Add the encoded pairs of an argument. `argument` is its name in messages. Raises ToolFailed."""
        added = list(pairs)
        names = {unquote(encoded) for encoded, _ in added}
        check_names(argument, names, self._names | self._arguments - {name})
        self._names |= names
        self._pairs += added


def check_names(argument: str, names: Collection[str], taken: Collection[str]) -> None:
    """Raise ToolFailed if an argument, such as an object, would write a taken name."""
    if clash := {*names} & {*taken}:
        raise ToolFailed(f"argument {argument!r} must not have the name {min(clash)[:80]!r}, which is taken")


def pairs_of(parameter: Parameter, value: Any) -> Iterator[Pair]:
    """Yield the encoded names and values of a query parameter. Raises ToolFailed."""
    name = encode(parameter.name)
    if parameter.style is Style.JSON:
        yield name, encode(dump_json(value))
    elif isinstance(value, dict):
        yield from _pairs_of_object(parameter, name, value)
    elif isinstance(value, list):
        items = [encode(_text(parameter, item)) for item in value]
        if not parameter.explode:
            items = [_joined(parameter, items)]
        yield from ((name, item) for item in items)
    else:
        yield name, encode(_text(parameter, value))


def _pairs_of_object(parameter: Parameter, name: str, value: Mapping[str, Any]) -> Iterator[Pair]:
    items = [(encode(key), encode(_text(parameter, item))) for key, item in value.items()]
    if parameter.style is Style.DEEP_OBJECT:
        _check_keys(parameter, value)
        yield from ((f"{name}%5B{key}%5D", text) for key, text in items)
    elif parameter.explode:
        yield from items
    else:
        yield name, _joined(parameter, [part for item in items for part in item])


def _joined(parameter: Parameter, items: Collection[str]) -> str:
    """Return the encoded items, joined by the style's separator, which is encoded in some styles. Raises ToolFailed."""
    separator = _SEPARATORS[parameter.style]
    if any(separator in item for item in items):
        raise ToolFailed(
            f"argument {parameter.argument!r} has a value with {unquote(separator)!r}, which separates the values in "
            f"style {parameter.style}: give values without it"
        )
    return separator.join(items)


def _check_keys(parameter: Parameter, value: Mapping[str, Any]) -> None:
    """Raise ToolFailed for an empty key or a key with brackets, which would write to another location."""
    for key in value:
        if not key or "[" in key or "]" in key:
            raise ToolFailed(
                f"argument {parameter.argument!r} has the name {key[:80]!r}: give one without square brackets"
            )


def header_of(parameter: Parameter, value: Any) -> str:
    """Return the value of a header. Raises ToolFailed if it contains characters that headers cannot have."""
    text = _simple(parameter, value, str)
    if parameter.style is not Style.JSON:
        _check_header_items(parameter, value)
    if not is_header_text(text):
        raise ToolFailed(f"argument {parameter.argument!r} goes into a header: only printable ASCII characters fit")
    return text


def _check_header_items(parameter: Parameter, value: Any) -> None:
    """Raise ToolFailed if an item contains a separator, because headers are not encoded."""
    match value:
        case dict():
            keys, items = [*value], [*value.values()]
        case list():
            keys, items = [], value
        case _:
            return
    if any("," in text_of(part) for part in (*keys, *items)):
        raise ToolFailed(
            f"argument {parameter.argument!r} has a value with ',', which separates the values in a header: "
            "give values without it"
        )
    if parameter.explode and any("=" in key for key in keys):
        raise ToolFailed(
            f"argument {parameter.argument!r} has a name with '=', which ends a name in a header: give names without it"
        )


def is_header_text(text: str) -> bool:
    """Return whether a text can be the value of a header."""
    return text.isascii() and text.isprintable()


def path_text_of(parameter: Parameter, value: Any) -> str:
    """Return the encoded text for a parameter in the path. It is empty for a list or an object without items."""
    match parameter.style:
        case Style.MATRIX:
            return _matrix(parameter, value)
        case Style.LABEL:
            return _label(parameter, value)
        case _:
            return _simple(parameter, value, encode)


def _simple(parameter: Parameter, value: Any, encode_part: Callable[[str], str]) -> str:
    """Write a value in the style `simple`, with unencoded commas between items."""
    if parameter.style is Style.JSON:
        return encode_part(dump_json(value))
    sign = "=" if parameter.explode else ","
    return ",".join(_items_of(parameter, value, sign, encode_part))


def _matrix(parameter: Parameter, value: Any) -> str:
    """Write a value in the style `matrix`, with a semicolon before each name and value."""
    name = encode(parameter.name)
    if parameter.explode and isinstance(value, dict):
        pairs = [(encode(key), encode(_text(parameter, item))) for key, item in value.items()]
    elif parameter.explode:
        pairs = [(name, item) for item in _items_of(parameter, value, "=", encode)]
    else:
        items = list(_items_of(parameter, value, ",", encode))
        pairs = [(name, ",".join(items))] if items else []
    # An empty value has no equals sign before it (RFC 6570, section 3.2.7).
    return "".join(f";{key}={text}" if text else f";{key}" for key, text in pairs)


def _label(parameter: Parameter, value: Any) -> str:
    """Write a value in the style `label`: a dot precedes the value and, if exploded, separates the items."""
    sign, separator = ("=", ".") if parameter.explode else (",", ",")
    items = list(_items_of(parameter, value, sign, _encode_with_dots))
    return "." + separator.join(items) if items else ""


def _encode_with_dots(text: str) -> str:
    return encode(text).replace(".", "%2E")


def _items_of(parameter: Parameter, value: Any, sign: str, encode_part: Callable[[str], str]) -> Iterator[str]:
    """Yield the items of a list, an object's names and values joined by `sign`, or a single value."""
    if isinstance(value, dict):
        yield from (f"{encode_part(key)}{sign}{encode_part(_text(parameter, item))}" for key, item in value.items())
    elif isinstance(value, list):
        yield from (encode_part(_text(parameter, item)) for item in value)
    else:
        yield encode_part(_text(parameter, value))


def _text(parameter: Parameter, value: Any) -> str:
    if isinstance(value, dict | list):
        raise ToolFailed(
            f"argument {parameter.argument!r} has a list or an object inside another, "
            f"which {parameter.style} cannot write"
        )
    return text_of(value)


def text_of(value: Any) -> str:
    """Return a string unchanged, and a number, a Boolean or null as JSON."""
    return value if isinstance(value, str) else dump_json(value)


def encode(text: str) -> str:
    """Return a text with all characters percent-encoded except letters, digits and `-._~`."""
    return quote(text, safe="", errors="replace")
