"""Reads suites from files: YAML or JSON for a whole suite, or JSON Lines with one case per line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.evaluation.suite.model import SuiteError
from gateway.written.errors import WrittenError
from gateway.written.plain_yaml import parse_yaml
from pagantic_common.domain.text.json_text import JsonTextError, parse_json

MAX_FILE_BYTES = 64 * 1024 * 1024


def read_suite(path: Path) -> dict[str, Any]:
    """Return the suite in a file as JSON values, with a default name from the file name.

    A JSON Lines file contains only cases. In another file, `cases` may name a JSON Lines file in the same folder.
    Raises SuiteError if the file cannot be read or is invalid.
    """
    name = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in path.stem)[:40] or "suite"
    if path.suffix == ".jsonl":
        return {"name": name, "cases": _read_cases(path)}
    text = _read(path)
    try:
        if path.suffix == ".json":
            written: Any = parse_json(text, is_rewritable=True)
        else:
            written = parse_yaml(text)
    except (JsonTextError, WrittenError) as error:
        raise SuiteError(f"{str(path)!r}: {error}") from None
    if not isinstance(written, dict):
        raise SuiteError(f"{str(path)!r}: a suite is a mapping with `cases` and `scorers`")
    if isinstance(written.get("cases"), str):
        written = {**written, "cases": _read_cases(path.parent / written["cases"])}
    return {"name": name, **written}


def _read_cases(path: Path) -> list[Any]:
    cases = []
    for number, line in enumerate(_read(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            cases.append(parse_json(line, is_rewritable=True))
        except JsonTextError as error:
            raise SuiteError(f"line {number} of {str(path)!r} is not JSON: {error}") from None
    return cases


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise SuiteError(f"{str(path)!r} has more than {MAX_FILE_BYTES} bytes")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise SuiteError(f"cannot read {str(path)!r}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise SuiteError(f"cannot read {str(path)!r}: it is not UTF-8 text") from None
