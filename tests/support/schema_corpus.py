"""Schemas as callers write them, and odd ones; each with the draft that it is of."""

import json

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email": {"type": "string", "format": "email"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def object_of(*, closed=True, required=None, **properties):
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }
    return {**schema, "additionalProperties": False} if closed else schema


OWN = [
    PERSON,
    True,
    {},
    {"type": "null"},
    {"type": "boolean"},
    {"type": "integer", "minimum": -5, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 12},
    {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 50},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 10},
    {"type": "string", "maxLength": 12},
    {"type": "string", "minLength": 5, "maxLength": 5},
    {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
    {"type": "string", "pattern": "[0-9]", "maxLength": 8},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "no-such-format", "maxLength": 10},
    {"enum": ["yes", "no", 1, None, {"a": [1, 2]}]},
    {"enum": ["Straße", "日本", "emoji 😀", 'quote " and \\ backslash']},
    {"const": {"b": 1, "a": [True, None]}},
    {"type": ["string", "null"], "maxLength": 5},
    {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 4},
    {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "maxItems": 3},
    {
        "type": "array",
        "prefixItems": [{"type": "integer", "maximum": 9}, {"enum": ["x"]}],
        "items": False,
        "minItems": 2,
    },
    {
        "type": "array",
        "contains": {"const": 7},
        "items": {"type": "integer", "minimum": 0, "maximum": 9},
        "maxItems": 5,
    },
    {"anyOf": [{"type": "integer", "maximum": 9, "minimum": 0}, {"enum": ["many"]}]},
    {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 6}, {"type": "integer", "minimum": 4, "maximum": 9}]},
    {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 8}]},
    {"not": {"type": "string"}, "type": ["string", "boolean"]},
    {"if": {"type": "integer"}, "then": {"minimum": 5}, "type": ["integer", "null"], "maximum": 9},
    object_of(kind={"const": "point"}, x={"type": "integer", "minimum": 0, "maximum": 9}),
    object_of(tags={"type": "array", "items": PERSON, "maxItems": 2}),
    object_of(open={"type": "string", "maxLength": 8}, closed=False),
    object_of(a={"type": "boolean"}, b={"type": "boolean"}, required=[]),
    {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}, "maxProperties": 3},
    {
        "type": "object",
        "patternProperties": {"^n_": {"type": "boolean"}},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "boolean"}},
    {
        "type": "object",
        "properties": {"a": {}, "b": {}},
        "dependentRequired": {"a": ["b"]},
        "additionalProperties": False,
    },
    {"type": "object", "properties": {"a": {"const": 1}}, "unevaluatedProperties": False},
    {"$ref": "#/$defs/leaf", "$defs": {"leaf": object_of(v={"enum": [1, 2]})}},
    {
        "$ref": "#tree",
        "$defs": {
            "t": {"$anchor": "tree", **object_of(kids={"type": "array", "items": {"$ref": "#tree"}, "maxItems": 1})}
        },
    },
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "items": [{"type": "null"}],
        "type": "array",
        "additionalItems": False,
    },
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$ref": "#/definitions/a",
        "definitions": {"a": {"enum": ["x"]}},
    },
    {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "properties": {"id": {"type": "integer", "minimum": 0, "exclusiveMinimum": True}},
        "required": ["id"],
    },
    {
        "$schema": "https://json-schema.org/draft/2019-09/schema",
        "type": "array",
        "items": {"type": "boolean"},
        "maxItems": 2,
    },
    object_of(**{'odd "key" \\ é': {"enum": ["v"]}, "": {"type": "null"}}),
    object_of(level={"enum": ["LOW", "low", "High"]}),
    {"type": "integer", "multipleOf": 1e-300, "minimum": 0, "maximum": 9},
    {"allOf": [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(20)]},
]

OF_SUITES = {
    "draft2020-12": None,
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
}


def of_suites(folder):
    """Return the distinct schemas of JSON-Schema-Test-Suite, their dialect named."""
    found = {}
    for draft, name in OF_SUITES.items():
        for path in sorted((folder / "json-schema-test-suite" / "tests" / draft).glob("*.json")):
            for group in json.loads(path.read_text()):
                schema = group["schema"]
                if name and isinstance(schema, dict) and "$schema" not in schema:
                    schema = {"$schema": name, **schema}
                found[json.dumps(schema)] = schema
    return list(found.values())
