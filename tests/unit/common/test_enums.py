from pagantic.common.v1 import message_pb2
from pagantic_common.codec.fields import EnumCodec, name_of
from pagantic_common.domain.messages import Role, ToolSafety

ROLES = EnumCodec(message_pb2.Role, Role, "ROLE_", unknown=None)
SAFETIES = EnumCodec(message_pb2.ToolSafety, ToolSafety, "TOOL_SAFETY_", unknown=ToolSafety.NONE)
NEWER = 99


def test_every_member_returns_as_itself():
    assert [ROLES.from_proto(ROLES.to_proto(role)) for role in Role] == list(Role)
    assert [SAFETIES.from_proto(SAFETIES.to_proto(safety)) for safety in ToolSafety] == list(ToolSafety)


def test_no_member_is_unspecified():
    assert ROLES.to_proto(None) == message_pb2.ROLE_UNSPECIFIED


def test_unset_and_newer_numbers_are_the_unknown_value():
    assert ROLES.from_proto(message_pb2.ROLE_UNSPECIFIED) is None
    assert ROLES.from_proto(NEWER) is None
    assert SAFETIES.from_proto(NEWER) is ToolSafety.NONE


def test_name_of_a_newer_number_is_the_number():
    assert name_of(message_pb2.Role, message_pb2.ROLE_USER, "ROLE_") == "USER"
    assert name_of(message_pb2.Role, NEWER, "ROLE_") == "99"
