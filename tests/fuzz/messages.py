"""Requests generated from descriptors: wholly, or a valid one with a few of its fields set otherwise."""

import math

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor as Field
from hypothesis import strategies as st

from tests.fuzz.values import floats, integers, texts

MAX_DEPTH = 5
MAX_CHANGES = 3
FLOAT_MAX = 3.4028234663852886e38
KINDS = {
    Field.CPPTYPE_INT32: "int32",
    Field.CPPTYPE_INT64: "int64",
    Field.CPPTYPE_UINT32: "uint32",
    Field.CPPTYPE_UINT64: "uint64",
}
# Protobuf refuses what is finite and beyond a float.
OTHERS = {
    Field.CPPTYPE_FLOAT: floats().filter(lambda value: not math.isfinite(value) or abs(value) <= FLOAT_MAX),
    Field.CPPTYPE_DOUBLE: floats(),
    Field.CPPTYPE_BOOL: st.booleans(),
    Field.CPPTYPE_STRING: st.binary(max_size=60),
}


def requests(descriptor, valid=()):
    """Strategy for messages of a type: some fields set, alone or over one of the valid messages."""
    changes = sparse(descriptor, MAX_DEPTH)
    if not valid:
        return changes
    return changes | st.builds(_over, st.sampled_from(list(valid)), changes)


def sparse(descriptor, depth):
    """Strategy for messages with up to three of their fields set, nested up to `depth`."""
    cls = message_factory.GetMessageClass(descriptor)
    fields = [field for field in descriptor.fields if depth or field.message_type is None]
    if not fields:
        return st.builds(cls)
    chosen = st.lists(st.sampled_from(fields), max_size=MAX_CHANGES, unique_by=lambda field: field.name)
    return chosen.flatmap(
        lambda some: st.fixed_dictionaries({field.name: _values(field, depth - 1) for field in some})
    ).map(lambda values: cls(**values))


def _over(valid, changes):
    merged = type(valid)()
    merged.CopyFrom(valid)
    merged.MergeFrom(changes)
    return merged


def _values(field, depth):
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        if value.message_type is not None:
            return st.builds(dict)
        return st.dictionaries(_scalars(key), _scalars(value), max_size=3)
    one = _scalars(field) if field.message_type is None else sparse(field.message_type, depth)
    return st.lists(one, max_size=3) | st.lists(one, min_size=20, max_size=40) if field.is_repeated else one


def _scalars(field):
    if field.cpp_type in KINDS:
        return integers(field.name, KINDS[field.cpp_type])
    if field.cpp_type == Field.CPPTYPE_ENUM:
        return st.sampled_from([*field.enum_type.values_by_number, 99, -1])
    if field.type == Field.TYPE_STRING:
        return texts(field.name)
    return OTHERS[field.cpp_type]
