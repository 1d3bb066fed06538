"""Translates the schemas of an operation to JSON Schema 2020-12.

OpenAPI 3.0 has its own variant of JSON Schema, and OpenAPI 3.1 uses JSON Schema 2020-12. Only known keywords pass.
Keywords for readers, such as `example`, would cost a model tokens, and keywords that change the meaning of references
are rejected. Each schema that is a target of references becomes a definition. A schema that contains itself is
rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.tools.core.openapi.references import References, Unusable, shorten

MAX_NODES = 4096
MAX_DEPTH = 64
MAX_DESCRIPTION_CHARS = 300
_MAX_READ_CHARS = 8192

_VALUES = (
    *("type", "enum", "const", "format", "default", "pattern", "required", "dependentRequired"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"),
    *("minItems", "maxItems", "uniqueItems", "minContains", "maxContains", "minProperties", "maxProperties"),
    *("contentEncoding", "contentMediaType"),
)
_WORDS = ("title", "description")
_SCHEMAS = (
    *("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_LISTS_OF_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED_SCHEMAS = ("properties", "patternProperties", "dependentSchemas")
# These keywords may require omitted properties.
BOUND_TO_PROPERTIES = ("minProperties", "dependentRequired", "dependentSchemas", "if", "then", "else")
_REFUSED = ("$id", "$dynamicRef", "$recursiveRef")


class SchemaTranslator:
    """Translates the schemas of an operation, and collects their shared definitions."""

    def __init__(self, references: References, *, is_version_3_0: bool) -> None:
        self.definitions: dict[str, Any] = {}
        self._references = references
        self._is_version_3_0 = is_version_3_0
        self._names: dict[str, str] = {}
        self._open: set[str] = set()
        self._node_count = 0

    def translate(self, schema: Any, depth: int = 0) -> Any:
        """Translate a schema. Its references become `#/$defs/NAME` of `definitions`. Raises Unusable."""
        self._references.budget.spend(1)
        self._node_count += 1
        if self._node_count > MAX_NODES:
            raise Unusable(f"its schemas have more than {MAX_NODES} parts")
        if depth > MAX_DEPTH:
            raise Unusable(f"its schemas are nested more than {MAX_DEPTH} levels deep")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise Unusable("a schema is not an object")
        for keyword in _REFUSED:
            if keyword in schema:
                raise Unusable(f"a schema has {keyword!r}, which is not supported")
        if "$ref" not in schema:
            return self._translate_keywords(schema, depth)
        reference = {"$ref": f"#/$defs/{self._definition_of(schema['$ref'], depth)}"}
        if self._is_version_3_0:  # version 3.0 ignores keywords next to a reference
            return reference
        return {**reference, **self._translate_keywords(schema, depth)}

    def _definition_of(self, reference: Any, depth: int) -> str:
        target = self._references.find(reference)
        if reference in self._open:
            raise Unusable(f"schema {shorten(reference)!r} contains itself: circular schemas are not supported")
        name = self._names.get(reference)
        if name is None:
            name = f"{_name_of(reference)}_{len(self._names)}"
            self._names[reference] = name
            self._open.add(reference)
            self.definitions[name] = self.translate(target, depth + 1)
            self._open.discard(reference)
        return name

    def _translate_keywords(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        translated: dict[str, Any] = {}
        for keyword, value in schema.items():
            if keyword in _VALUES:
                translated[keyword] = value
            elif keyword in _WORDS and isinstance(value, str):
                translated[keyword] = cut(value, MAX_DESCRIPTION_CHARS)
            elif keyword in _SCHEMAS:
                translated[keyword] = self.translate(value, depth + 1)
            elif keyword in _LISTS_OF_SCHEMAS:
                translated[keyword] = self._translate_list(keyword, value, depth)
            elif keyword in _NAMED_SCHEMAS:
                translated[keyword] = self._translate_named(keyword, value, depth)
        _leave_out_read_only(schema, translated)
        if self._is_version_3_0:
            return _modernize(schema, translated)
        return translated

    def _translate_list(self, keyword: str, schemas: Any, depth: int) -> list[Any]:
        if not isinstance(schemas, list):
            raise Unusable(f"{keyword!r} of a schema is not a list")
        return [self.translate(schema, depth + 1) for schema in schemas]

    def _translate_named(self, keyword: str, schemas: Any, depth: int) -> dict[str, Any]:
        if not isinstance(schemas, dict):
            raise Unusable(f"{keyword!r} of a schema is not an object")
        if "$ref" in schemas:
            raise Unusable(f"{keyword!r} of a schema has the name '$ref', which is not distinguished from a reference")
        return {name: self.translate(schema, depth + 1) for name, schema in schemas.items()}


def cut(text: str, max_chars: int) -> str:
    """Cut a text to at most `max_chars` characters, with `…` in place of the rest."""
    text = text[:_MAX_READ_CHARS].strip()
    if len(text) <= max_chars:
        return text
    return text[: max_chars - 1].rstrip() + "…"


def _name_of(reference: str) -> str:
    """Return the letters and digits of the last segment of a reference."""
    end = reference.rpartition("/")[2]
    return "".join(character for character in end if character.isascii() and character.isalnum())[:40] or "schema"


def read_only_names(properties: Mapping[str, Any]) -> set[str]:
    """Return the names of the read-only properties, which only responses contain."""
    return {name for name, value in properties.items() if isinstance(value, dict) and value.get("readOnly") is True}


def _leave_out_read_only(schema: Mapping[str, Any], translated: dict[str, Any]) -> None:
    """Remove read-only properties."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return
    read_only = read_only_names(properties)
    if not read_only:
        return
    for name in read_only:
        del translated["properties"][name]
    for keyword in BOUND_TO_PROPERTIES:
        translated.pop(keyword, None)
    required = translated.get("required")
    if isinstance(required, list):
        translated["required"] = [name for name in required if not isinstance(name, str) or name not in read_only]


def _modernize(schema: Mapping[str, Any], translated: dict[str, Any]) -> dict[str, Any]:
    """Translate the keywords of OpenAPI 3.0 to JSON Schema 2020-12."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        is_exclusive = translated.get(exclusive)
        if isinstance(is_exclusive, bool):
            del translated[exclusive]
            if is_exclusive and bound in translated:
                translated[exclusive] = translated.pop(bound)
    if not translated.get("required", True):
        del translated["required"]  # version 3.0 forbids empty lists
    if schema.get("nullable") is not True:
        return translated
    return _with_null(translated)


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    kind, values = schema.get("type"), schema.get("enum")
    if not isinstance(kind, str):
        return {"anyOf": [schema, {"type": "null"}]}
    schema["type"] = [kind, "null"]
    if isinstance(values, list) and None not in values:
        schema["enum"] = [*values, None]
    return schema
