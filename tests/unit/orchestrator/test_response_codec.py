"""Each field of a SystemResponse survives decoding and encoding, so that a journal keeps all of it."""

import pytest

from pagantic.orchestrator.v1 import execution_pb2
from services.orchestrator.convert.response import response_from_proto, response_to_proto

FIELDS = list(execution_pb2.SystemResponse.DESCRIPTOR.fields)


def response_with(field):
    """Return a response in which the field alone is set, and not to its default."""
    response = execution_pb2.SystemResponse()
    if field.message_type is not None:
        inner = getattr(response, field.name)
        if field.is_repeated:
            inner.add()
        else:
            inner.SetInParent()
    else:
        sample = {field.CPPTYPE_STRING: "x", field.CPPTYPE_DOUBLE: 0.5}.get(field.cpp_type, 1)
        setattr(response, field.name, sample)
    return response


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_field_of_a_response_survives_the_codec(field):
    sent = response_with(field)
    again = response_to_proto(response_from_proto(sent))
    assert field.name in {present.name for present, _ in again.ListFields()}
    if field.message_type is None:
        assert getattr(again, field.name) == getattr(sent, field.name)
