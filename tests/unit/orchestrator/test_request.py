import pytest

from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.messages import Message, Role
from services.orchestrator.app.effects import hash_arguments
from services.orchestrator.convert.request import fingerprint_of
from services.orchestrator.core.contract import OutputContract
from services.orchestrator.core.prompt import assemble_messages, last_user_text
from services.orchestrator.core.request import (
    ContextPolicy,
    Hints,
    Mode,
    Request,
    RetryPolicy,
    SystemPrompt,
    check_configuration,
    check_request,
)

USER = Message(Role.USER, "why?")
CONTEXT = Message(Role.SYSTEM, "Relevant context:")


def request(**fields):
    return Request(**{"request_id": "r", "mode": Mode.CHAT, "messages": (USER,), **fields})


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"request_id": "a b"}, "request_id 'a b'"),
        ({"session_id": "ü"}, "session_id"),
        ({"trace_id": "abc"}, "trace_id"),
        ({"messages": ()}, "messages is empty"),
        ({"messages": (USER, Message(Role.SYSTEM, "x"), USER)}, "system message may only come first"),
        ({"hints": Hints(max_tokens=-1)}, "max_tokens"),
        ({"hints": Hints(timeout_s=0)}, "timeout"),
        ({"hints": Hints(temperature=2.1)}, "temperature"),
        ({"retry": RetryPolicy(max_retries=11)}, "max_retries is 11"),
    ],
)
def test_a_malformed_envelope_is_refused_naming_the_field(fields, wrong):
    with pytest.raises(InvalidRequest, match=wrong):
        check_request(request(**fields))


def test_structured_needs_a_schema_that_is_json():
    with pytest.raises(InvalidRequest) as missing:
        check_configuration(request(mode=Mode.STRUCTURED))
    assert missing.value.code is ErrorCode.CONFIG_SCHEMA_REQUIRED
    with pytest.raises(InvalidRequest, match="not JSON") as broken:
        check_configuration(request(output=OutputContract(schema_json="{")))
    assert broken.value.code is ErrorCode.CONFIG_INVALID


def test_instruction_sets_are_joined_by_blank_lines():
    prompt = SystemPrompt("Be brief.", (("Style", ("no lists", "no jokes")), ("Scope", ("only France",))))
    assert prompt.render() == "Be brief.\n\n## Style\n- no lists\n- no jokes\n\n## Scope\n- only France"


def test_context_goes_before_the_last_user_message_or_after_the_system_prompt():
    history = (Message(Role.USER, "before"), Message(Role.ASSISTANT, "yes"))
    work = request(prompt=SystemPrompt("Be brief."))
    default = assemble_messages(work, history, CONTEXT, (Message(Role.ASSISTANT, "hm"),))
    assert [message.content for message in default] == ["Be brief.", "before", "yes", "Relevant context:", "why?", "hm"]
    early = request(prompt=SystemPrompt("Be brief."), context=ContextPolicy("R", "c", is_after_system=True))
    assert assemble_messages(early, history, CONTEXT, ())[1] == CONTEXT
    assert last_user_text(work, history) == "why?"


def test_a_free_decoder_is_told_the_schema_in_words():
    output = OutputContract(schema_json='{"type":"object"}', decoder_constraint=False)
    assert '{"type":"object"}' in assemble_messages(request(output=output), (), None, ())[0].content


def test_the_fingerprint_is_of_the_payload_and_not_of_its_ids():
    first = execution_pb2.SystemRequest(request_id="a", trace_id="t", session_id="s")
    second = execution_pb2.SystemRequest(request_id="b", session_id="s")
    assert fingerprint_of(first) == fingerprint_of(second)
    assert fingerprint_of(first) != fingerprint_of(execution_pb2.SystemRequest(session_id="other"))


def test_equal_arguments_hash_alike_however_they_are_written():
    assert hash_arguments('{"b":1.0,"a":2}') == hash_arguments('{ "a": 2, "b": 1 }')
    assert hash_arguments("not json") != hash_arguments("{}")


def test_backoff_is_fixed_or_doubles():
    assert [RetryPolicy(backoff_s=1).wait_s(n, 0.5) for n in (0, 1, 2, 3)] == [0, 1, 1, 1]
    exponential = RetryPolicy(backoff_s=1, is_exponential=True)
    assert [exponential.wait_s(n, 0.0) for n in (0, 1, 2, 3)] == [0, 1, 2, 4]
    assert [exponential.wait_s(n, 0.5) for n in (1, 2, 3)] == [0.75, 1.5, 3]
