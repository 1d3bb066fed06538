"""Converts descriptors of the contract's messages to JSON Schema, following the JSON mapping of Protocol Buffers.

The module is pure. The schemas describe the output of the gateway, which it also accepts. It accepts other spellings of
the mapping as well: field names in camel case, 64-bit numbers as numbers, enums by their numbers, and null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, OneofDescriptor

from gateway.http.bodies import SCHEMAS

Schema = dict[str, Any]

_INFINITIES = ["NaN", "Infinity", "-Infinity"]
_UNSIGNED_64: Schema = {"type": "string", "pattern": "^[0-9]{1,20}$"}
_SIGNED_64: Schema = {"type": "string", "pattern": "^-?[0-9]{1,19}$"}
_FLOAT: Schema = {"anyOf": [{"type": "number"}, {"enum": _INFINITIES}]}
_KINDS: dict[int, Schema] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_FLOAT: _FLOAT,
    FieldDescriptor.TYPE_DOUBLE: _FLOAT,
    FieldDescriptor.TYPE_INT32: {"type": "integer", "minimum": -(1 << 31), "maximum": (1 << 31) - 1},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "minimum": 0, "maximum": (1 << 32) - 1},
    FieldDescriptor.TYPE_INT64: _SIGNED_64,
    FieldDescriptor.TYPE_UINT64: _UNSIGNED_64,
}
# Messages for which the mapping defines special forms.
_WELL_KNOWN: dict[str, Schema] = {
    "google.protobuf.Duration": {"type": "string", "pattern": "^-?[0-9]{1,12}(\\.[0-9]{1,9})?s$"},
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Struct": {"type": "object"},
}


def message_schemas(messages: Iterable[Descriptor]) -> dict[str, Schema]:
    """Return the schemas of messages and of the messages nested in them, by full name.

    Raises KeyError if a field has a type that the contract has not used so far.
    """
    schemas: dict[str, Schema] = {}
    waiting = list(messages)
    while waiting:
        message = waiting.pop()
        if message.full_name not in schemas and message.full_name not in _WELL_KNOWN:
            schemas[message.full_name] = _message_schema(message)
            waiting += _messages_in(message)
    return dict(sorted(schemas.items()))


def _message_schema(message: Descriptor) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {field.name: _field_schema(field) for field in message.fields},
        "additionalProperties": False,
    }
    choices = [_at_most_one_of(oneof) for oneof in message.oneofs if len(oneof.fields) > 1]
    if choices:
        schema["allOf"] = choices
    return schema


def _at_most_one_of(oneof: OneofDescriptor) -> Schema:
    """Return the schema of an object that has at most one of these fields."""
    fields: list[Schema] = [{"required": [field.name]} for field in oneof.fields]
    return {"oneOf": [*fields, {"not": {"anyOf": fields}}]}


def _field_schema(field: FieldDescriptor) -> Schema:
    if _is_map(field):
        return {"type": "object", "additionalProperties": _value_schema(_values_of(field))}
    if field.is_repeated:
        return {"type": "array", "items": _value_schema(field)}
    return _value_schema(field)


def _value_schema(field: FieldDescriptor) -> Schema:
    if field.type == FieldDescriptor.TYPE_ENUM:
        return {"enum": [value.name for value in cast("EnumDescriptor", field.enum_type).values]}
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        name = _message_of(field).full_name
        return _WELL_KNOWN.get(name) or {"$ref": SCHEMAS + name}
    return _KINDS[field.type]


def _messages_in(message: Descriptor) -> Iterator[Descriptor]:
    """Yield the messages that are types of a message's fields."""
    for field in message.fields:
        value = _values_of(field) if _is_map(field) else field
        if value.type == FieldDescriptor.TYPE_MESSAGE:
            yield _message_of(value)


def _is_map(field: FieldDescriptor) -> bool:
    return field.type == FieldDescriptor.TYPE_MESSAGE and bool(_message_of(field).GetOptions().map_entry)


def _values_of(field: FieldDescriptor) -> FieldDescriptor:
    """Return the field that describes the values of a map."""
    return _message_of(field).fields_by_name["value"]


def _message_of(field: FieldDescriptor) -> Descriptor:
    return cast("Descriptor", field.message_type)
