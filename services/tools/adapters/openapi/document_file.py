"""Reads OpenAPI documents in JSON or YAML as JSON values, and finds where they violate the standard.

Only the schemas of openapi-spec-validator are used. Its further checks follow references, even to files and URLs, and a
third party's document must not make the service open them.
"""

from __future__ import annotations

import math
import re
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import MAX_DEPTH, JsonTextError, parse_json
from services.tools.core.openapi.operations import Problem

MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
MAX_YAML_BYTES = 8 * 1024 * 1024  # reading YAML takes four times as long as JSON
MAX_VALUES = 1_000_000
MAX_PROBLEMS = 1000
_MAX_WORDS_CHARS = 200


class DocumentError(ValueError):
    """The file is not a JSON value. The message completes a sentence that starts with "the document"."""


def read_document(path: Path) -> Any:
    """Return the JSON value of a file. Raises an InvalidRequest that names the file."""
    is_json = path.suffix.lower() == ".json"
    limit_bytes = MAX_DOCUMENT_BYTES if is_json else MAX_YAML_BYTES
    try:
        if path.stat().st_size > limit_bytes:
            raise InvalidRequest(f"OPENAPI: {str(path)!r} has more than {limit_bytes} bytes")
        return _parse(path.read_text("utf-8-sig"), is_json=is_json)
    except OSError as error:
        raise InvalidRequest(f"OPENAPI: {str(path)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"OPENAPI: {str(path)!r} is not UTF-8: {error.reason}") from None
    except DocumentError as error:
        raise InvalidRequest(f"OPENAPI: {str(path)!r} {error}") from None


def _parse(text: str, *, is_json: bool) -> Any:
    if is_json:
        try:
            return parse_json(text, is_rewritable=True)
        except JsonTextError as error:
            raise DocumentError(f"is not JSON: {error}") from None
    try:
        _check_depth(text)
        value = yaml.load(text, _Loader)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f"line {mark.line + 1} column {mark.column + 1}: "
        raise DocumentError(f"is not YAML: {where}{error.problem}") from None
    except DocumentError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DocumentError(f"is not YAML: {str(error)[:_MAX_WORDS_CHARS]}") from None
    return _JsonValues().convert(value, 0)


def _check_depth(text: str) -> None:
    """Raise DocumentError for deeply nested YAML, which would overflow the stack of the recursive C loader."""
    depth = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise _too_deep()


class _Loader(yaml.CSafeLoader):
    """A safe loader that yields only JSON values, as the standard requires: a date and `on` are text."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - as the base class has it

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Leave merge keys unexpanded, because expansion can grow without bound. They are rejected as keys later."""


for _tag, _form, _beginnings in (
    ("null", r"|~|null|Null|NULL", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_form})$"), _beginnings)


class _JsonValues:
    """Converts YAML values to JSON values. Aliases are expanded, so the limit on values also limits memory."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def convert(self, value: Any, depth: int) -> Any:
        """Return a JSON value. Raises DocumentError."""
        self._left -= 1
        if self._left < 0:
            raise DocumentError(f"has more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise _too_deep()
        match value:
            case dict():
                return {_key_of(key): self.convert(item, depth + 1) for key, item in value.items()}
            case list():
                return [self.convert(item, depth + 1) for item in value]
            case str():
                return _checked(value)
            case float() if not math.isfinite(value):
                raise DocumentError(f"has the number {value}, which JSON does not have")
            case None | bool() | int() | float():
                return value
        raise DocumentError(f"has a value of type {type(value).__name__}, which JSON does not have")


def _too_deep() -> DocumentError:
    return DocumentError(f"is nested too deeply: at most {MAX_DEPTH} levels are taken")


def _key_of(key: Any) -> str:
    """Return a key as text, because some keys, such as status codes, are often written as numbers."""
    if isinstance(key, bool):
        return str(key).lower()
    if key == "<<":
        raise DocumentError("has a merge key '<<', which is not supported: write out what it merges")
    if isinstance(key, str | int | float):
        return _checked(str(key))
    raise DocumentError(f"has a key of type {type(key).__name__}, which JSON does not have")


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DocumentError("has half of a surrogate pair") from None
    return text


def find_problems(document: dict[str, Any]) -> list[Problem]:
    """Return up to 1000 violations of the standard in a document of version 3.0 or 3.1, with their paths."""
    from openapi_spec_validator import schemas  # noqa: PLC0415 - it takes a second, and most deployments have no documents

    validator = schemas.openapi_v31_schema_validator
    if document["openapi"].startswith("3.0"):
        validator = schemas.openapi_v30_schema_validator
    return [
        (tuple(error.absolute_path), str(error.message)[:_MAX_WORDS_CHARS])
        for error in islice(validator.iter_errors(document), MAX_PROBLEMS)
    ]
