"""JSON files that settings name, with the environment's variables in their texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

MAX_FILE_BYTES = 1024 * 1024
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

ContentT = TypeVar("ContentT", bound="FileEntry")


class FileEntry(BaseModel):
    """A part of a file; unknown keys are left alone."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)


def read_file(path: Path, form: type[ContentT], setting: str, variables: Mapping[str, str]) -> ContentT:
    """Return the content of a file that a setting names.

    `${NAME}` and `${NAME:-default}` in a text stand for an environment variable. Raises InvalidRequest, naming what is
    wrong, without the texts of the file.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidRequest(f"{setting}: {str(path)!r} has more than {MAX_FILE_BYTES} bytes")
        return form.model_validate(_expand(parse_json(path.read_text("utf-8")), setting, variables))
    except OSError as error:
        raise InvalidRequest(f"{setting}: {str(path)!r} cannot be read: {error.strerror}") from None
    except (JsonTextError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{setting}: {str(path)!r} is not JSON: {error}") from None
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise InvalidRequest(f"{setting}: {where!r} in {str(path)!r}: {problem['msg'].lower()}") from None


def _expand(value: Any, setting: str, variables: Mapping[str, str]) -> Any:
    """Put variables in place of their names, in every text of a JSON value."""
    if isinstance(value, dict):
        return {key: _expand(item, setting, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, setting, variables) for item in value]
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _value_of(found, setting, variables), value)
    return value


def _value_of(found: re.Match[str], setting: str, variables: Mapping[str, str]) -> str:
    name, default = found[1], found[2]
    value = variables.get(name, default)
    if value is None:
        raise InvalidRequest(f"{setting} names the environment variable {name!r}, which is not set")
    return value
