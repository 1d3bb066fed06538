"""Reads an operator's JSON file at startup: limits its size, checks its form, and locates errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

MAX_FILE_BYTES: Final = 1024 * 1024
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

FormT = TypeVar("FormT", bound=BaseModel)


def read_json_file(path: Path, form: type[FormT], setting: str, variables: Mapping[str, str] | None = None) -> FormT:
    """Return the content of a file. Raises InvalidRequest, which quotes only the setting, the file and the error.

    Args:
        path: The file, of at most 1 MiB.
        form: The form of its content.
        setting: The setting that names the file.
        variables: If given, they replace `${NAME}` and `${NAME:-default}` in texts.
    """
    where = f"{setting} {str(path)!r}"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InvalidRequest(f"{where} has more than {MAX_FILE_BYTES} bytes")
        content = parse_json(data.decode())
        if variables is not None:
            content = _expand(content, where, variables)
        return form.model_validate_json(json.dumps(content))
    except OSError as error:
        raise InvalidRequest(f"{where} cannot be read: {error.strerror}") from None
    except (JsonTextError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{where} is not JSON: {error}") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidRequest(f"{where} is not valid: {place + ': ' if place else ''}{first['msg']}") from None


def _expand(value: Any, where: str, variables: Mapping[str, str]) -> Any:
    """Replace references to variables in every text of a JSON value."""
    if isinstance(value, dict):
        return {key: _expand(item, where, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, where, variables) for item in value]
    if not isinstance(value, str):
        return value

    def value_of(match: re.Match[str]) -> str:
        if (text := variables.get(match[1], match[2])) is None:
            raise InvalidRequest(f"{where} names the environment variable {match[1]!r}, which is not set")
        return text

    return _VARIABLE.sub(value_of, value)
