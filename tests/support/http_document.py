"""The gateway's own document, which every answer in the tests is held to."""

import json
import re
from functools import cache

from gateway.http.document.assembly import document_of
from gateway.http.operations import JSON, JSON_LINES, SENT_EVENTS
from gateway.http.serving import described_operations
from gateway.http.settings import HttpSettings
from tests.support.draft202012 import validator_of

STREAMS = (SENT_EVENTS, JSON_LINES)


@cache
def the_document():
    """Return the document of a gateway without settings, as JSON has it."""
    made = document_of(described_operations(HttpSettings()), "0", needs_key=False)
    return json.loads(json.dumps(made))


def problems_of(schema, value):
    """Return how a value differs from a schema of the document."""
    return [f"{error.json_path}: {error.message[:200]}" for error in _validator(json.dumps(schema)).iter_errors(value)]


async def check_answer(response):
    """Fail for an answer that is not as the document says; what it does not know may be answered in any way."""
    operation = operation_of(response.request.method, response.request.url.path)
    if operation is None:
        return
    where = f"{response.request.method} {response.request.url.path}: {response.status_code}"
    assert str(response.status_code) in operation["responses"], f"{where} is not in the document"
    kind = response.headers["content-type"].partition(";")[0]
    content = _resolved(operation["responses"][str(response.status_code)])["content"]
    assert kind in content, f"{where} has the type {kind}"
    if kind in STREAMS:
        return
    await response.aread()
    value = response.json() if kind == JSON else response.text
    assert problems_of(content[kind]["schema"], value) == [], where


def operation_of(method, path):
    """Return what the document says of a path, None where it says nothing."""
    for template, methods in the_document()["paths"].items():
        values = "[^/]+" if "{name}" not in template else ".+"
        if re.fullmatch(re.sub(r"\\\{\w+\\\}", values, re.escape(template)), path) and method.lower() in methods:
            return methods[method.lower()]
    return None


def _resolved(answer):
    if "$ref" not in answer:
        return answer
    return the_document()["components"]["responses"][answer["$ref"].rpartition("/")[2]]


@cache
def _validator(schema):
    return validator_of({"components": the_document()["components"], **json.loads(schema)})
