"""OpenAI's public API document, which answers of the gateway are held to."""

import json
import os
from functools import cache
from pathlib import Path

from tests.support.draft202012 import validator_of
from tests.support.needs import SUITES, skip_without

_PLACE = Path("openai-openapi", "openapi.json")


def problems_of(value, name):
    """Return how a value differs from the document's schema of this name; skips the test where there is no document."""
    folder = os.environ.get("PAGANTIC_SUITES")
    if not folder:
        skip_without(SUITES)
    validator = _validator(Path(folder, _PLACE), name)
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(value)]


def as_documented(event):
    """Return an answer or event without a usage of null, which OpenAI's API sends and its document mostly lacks."""
    event = {name: value for name, value in event.items() if (name, value) != ("usage", None)}
    if isinstance(event.get("response"), dict):
        event["response"] = as_documented(event["response"])
    return event


@cache
def _validator(path, name):
    return validator_of({"$ref": f"#/components/schemas/{name}", "components": _components(path)})


@cache
def _components(path):
    return _modern(json.loads(path.read_text())["components"])


def _modern(schema):
    """Write `nullable`, which the document still uses, as OpenAPI 3.1 writes it."""
    if isinstance(schema, list):
        return [_modern(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    modern = {key: _modern(value) for key, value in schema.items() if key != "nullable"}
    if schema.get("nullable") is True:
        return {"anyOf": [modern, {"type": "null"}]}
    return modern
