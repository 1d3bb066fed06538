"""Renders the API document as a page: paths, parameters and schemas, without scripts or network access.

The module is pure.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from gateway.http.bodies import SCHEMAS

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
summary { cursor: pointer; padding: .2rem 0; }
code, pre { font: 14px/1.4 ui-monospace, monospace; }
pre { background: #8882; border-radius: 4px; overflow: auto; padding: .75rem; }
td, th { border-bottom: 1px solid #8886; padding: .2rem .75rem .2rem 0; text-align: left; vertical-align: top; }
details details, details table, details p { margin-left: 1.5rem; }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
# The page may load nothing and may use only this style.
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def page_of(document: Mapping[str, Any]) -> str:
    """Return the HTML page of an API document."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    text = escape(document["info"]["description"])
    intro = f'</head><body><h1>{title}</h1><p>{text} <a href="openapi.json">openapi.json</a></p>'
    parts = [head, intro, *_tags(document), "<h2>Schemas</h2>", *_schemas(document), "</body></html>\n"]
    return "".join(parts)


def _tags(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the HTML section of each API."""
    responses = document["components"]["responses"]
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2>"
        for method, path, operation in _operations(document, tag["name"]):
            yield from _operation(method, path, operation, responses)


def _operations(document: Mapping[str, Any], tag: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the methods and paths of an API, each with its description."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag in operation["tags"]:
                yield method, path, operation


def _operation(
    method: str, path: str, operation: Mapping[str, Any], responses: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    place = f"<code><strong>{method.upper()}</strong> {escape(path)}</code>"
    yield f'<details id="{escape(operation["operationId"])}"><summary>{place} {escape(operation["summary"])}</summary>'
    yield from _table("Parameter", [_parameter_row(parameter) for parameter in operation["parameters"]])
    if body := operation.get("requestBody"):
        yield from _table("Body", [_content_row(body)])
    rows = []
    for status, answer in operation["responses"].items():
        described = responses[answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer
        rows.append(
            f"<td><code>{status}</code></td><td>{escape(described['description'])}</td>{_content_row(described)}"
        )
    yield from _table("Status", rows)
    yield "</details>"


def _table(name: str, rows: list[str]) -> Iterator[str]:
    if rows:
        yield f"<table><tr><th>{name}</th></tr><tr>{'</tr><tr>'.join(rows)}</tr></table>"


def _parameter_row(parameter: Mapping[str, Any]) -> str:
    name, text = escape(parameter["name"]), escape(parameter.get("description", ""))
    return f"<td><code>{name}</code></td><td>{parameter['in']}</td><td>{_code(parameter['schema'])}</td><td>{text}</td>"


def _content_row(described: Mapping[str, Any]) -> str:
    """Return the table cell for a body: its content types, each with its schema."""
    content = described["content"].items()
    parts = [f"{escape(kind)} {_code(media.get('x-itemSchema', media['schema']))}" for kind, media in content]
    return f"<td>{'<br>'.join(parts)}</td>"


def _schemas(document: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in document["components"]["schemas"].items():
        text = escape(json.dumps(schema, indent=2, ensure_ascii=False))
        summary = f"<summary><code>{escape(name)}</code></summary>"
        yield f'<details id="{escape(name)}">{summary}<pre>{_linked(text)}</pre></details>'


def _code(schema: Mapping[str, Any]) -> str:
    return f"<code>{_linked(escape(json.dumps(schema, ensure_ascii=False)))}</code>"


def _linked(text: str) -> str:
    """Return escaped JSON in which links replace the references."""
    parts = text.split(f"&quot;{SCHEMAS}")
    linked = [parts[0]]
    for part in parts[1:]:
        name, _, rest = part.partition("&quot;")
        linked.append(f'<a href="#{name}">{name}</a>{rest}')
    return "".join(linked)
