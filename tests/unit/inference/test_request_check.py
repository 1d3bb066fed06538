"""What is refused of a request before a model is used."""

import pytest

from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import generation_pb2
from pagantic.inference.v1 import inference_service_pb2 as pb
from pagantic_common.domain.errors import InvalidRequest
from services.inference.convert import chat_prompt_from_proto, request_from_proto, sampling_from_proto
from services.inference.core.request_check import check_prompt, check_request, check_sampling


def chat(*, tools=(), **fields):
    message = message_pb2.Message(role=message_pb2.ROLE_USER, content="hi")
    definitions = [message_pb2.ToolDefinition(name=name) for name in tools]
    return generation_pb2.ChatPrompt(messages=[message], tools=definitions, **fields)


@pytest.mark.parametrize("name", ["", " ", "a b", "a\x00", "é", "a" * 65, 'a"', "a>{"])
def test_a_tool_name_that_models_cannot_write_is_refused(name):
    with pytest.raises(InvalidRequest, match="tool name"):
        check_prompt(chat_prompt_from_proto(chat(tools=[name])))


def test_two_tools_of_one_name_are_refused():
    check_prompt(chat_prompt_from_proto(chat(tools=["a", "A-_9"])))
    with pytest.raises(InvalidRequest, match="two tools are named 'a'"):
        check_prompt(chat_prompt_from_proto(chat(tools=["a", "b", "a"])))


def test_numbers_that_no_enum_has_are_refused():
    with pytest.raises(InvalidRequest, match=r"tool_choice\.mode 99 is not known"):
        chat_prompt_from_proto(chat(tool_choice=message_pb2.ToolChoice(mode=99)))
    unsafe = chat(tools=["a"])
    unsafe.tools[0].safety = 99
    with pytest.raises(InvalidRequest, match="safety 99"):
        chat_prompt_from_proto(unsafe)
    with pytest.raises(InvalidRequest, match=r"reasoning\.mode 99"):
        request_from_proto(pb.InferRequest(text="hi", reasoning=generation_pb2.Reasoning(mode=99)))


def test_a_bias_of_a_token_below_zero_is_refused():
    with pytest.raises(InvalidRequest, match="token -1"):
        check_sampling(sampling_from_proto(generation_pb2.Sampling(logit_bias={-1: 1.0})))


@pytest.mark.parametrize(
    ("priority", "is_taken"),
    [(1, False), (0, True), (-10, True), (-11, False)],
)
def test_a_caller_may_lower_its_priority_and_never_raise_it(priority, is_taken):
    request = request_from_proto(pb.InferRequest(text="hi", priority=priority))
    if is_taken:
        check_request(request)
    else:
        with pytest.raises(InvalidRequest, match="between -10 and 0"):
            check_request(request)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"temperature": 2.1}, r"sampling\.temperature is 2\.1: it must be between 0 and 2"),
        ({"top_p": 0.0}, r"sampling\.top_p is 0: it must be above 0 and at most 1"),
        ({"min_p": float("nan")}, r"sampling\.min_p is nan"),
        ({"top_k": -1}, r"sampling\.top_k is -1"),
    ],
)
def test_a_sampling_value_out_of_its_range_is_refused_with_the_range(fields, wrong):
    with pytest.raises(InvalidRequest, match=wrong):
        check_sampling(sampling_from_proto(generation_pb2.Sampling(**fields)))
