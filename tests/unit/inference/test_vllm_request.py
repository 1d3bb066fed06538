"""Requests of vLLM's protocol: each field has its effect, or is refused by its name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from services.inference.core.generation import Constraint, ConstraintKind, Sampling, TokenPrompt
from services.inference.core.request_check import MAX_STOP_TOKENS, check_request
from services.inference.vllm.request import request_from_proto

TOKENS = pb.TokenizedInput(input_ids=[1, 2, 3], original_text="not read")


def request_with(**sampling):
    return pb.GenerateRequest(tokenized=TOKENS, sampling_params=pb.SamplingParams(**sampling))


def test_tokens_are_a_prompt_of_tokens_and_text_is_one_of_text():
    assert request_from_proto(request_with()).prompt == TokenPrompt((1, 2, 3))
    assert request_from_proto(pb.GenerateRequest(text="hi")).prompt == "hi"


def test_fields_that_are_not_set_have_the_defaults_of_vllm():
    decoded = request_from_proto(request_with())
    assert decoded.sampling == Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)
    assert (decoded.seed, decoded.max_tokens, decoded.candidate_count, decoded.top_logprobs) == (None, 0, 1, None)
    assert decoded.reports_tokens


UNIT = st.floats(0.125, 1, width=16)


@given(
    st.fixed_dictionaries(
        {
            "temperature": st.floats(0, 2, width=16),
            "top_p": UNIT,
            "top_k": st.integers(0, 2**31 - 1),
            "min_p": UNIT,
            "repetition_penalty": UNIT,
            "presence_penalty": UNIT,
            "frequency_penalty": UNIT,
            "logit_bias": st.dictionaries(st.integers(0, 1000), UNIT, max_size=3),
        }
    )
)
def test_sampling_is_taken_over_one_to_one(given_fields):
    decoded = request_from_proto(request_with(**given_fields))
    assert decoded.sampling == Sampling(**given_fields)
    check_request(decoded)


def test_the_other_fields_are_taken_over():
    decoded = request_from_proto(
        request_with(seed=-5, max_tokens=7, stop=["a", "b"], stop_token_ids=[4, 4, 5], n=3, logprobs=2)
    )
    assert (decoded.seed, decoded.max_tokens, decoded.stop) == (-5, 7, ("a", "b"))
    assert (decoded.stop_tokens, decoded.candidate_count, decoded.top_logprobs) == (frozenset({4, 5}), 3, 2)


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({}, None),
        ({"json_schema": "{}"}, Constraint(ConstraintKind.SCHEMA, "{}")),
        ({"json_object": True}, Constraint(ConstraintKind.SCHEMA, '{"type":"object"}')),
        ({"json_object": False}, None),
        ({"regex": "a+"}, Constraint(ConstraintKind.REGEX, "a+")),
        ({"grammar": 'root ::= "a"'}, Constraint(ConstraintKind.GBNF, 'root ::= "a"')),
    ],
)
def test_structured_outputs_are_constraints(fields, constraint):
    assert request_from_proto(request_with(**fields)).constraint == constraint


def test_a_choice_is_a_constraint_unless_it_is_empty():
    chosen = request_from_proto(request_with(choice=pb.ChoiceConstraint(choices=["yes", "no"]))).constraint
    assert chosen.kind is ConstraintKind.ENGINE_TEXT
    with pytest.raises(InvalidRequest, match=r"sampling_params\.choice cannot be enforced") as raised:
        request_from_proto(request_with(choice=pb.ChoiceConstraint()))
    assert raised.value.code is ErrorCode.CONSTRAINT_GRAMMAR_INVALID


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_tokens", 1),
        ("ignore_eos", True),
        ("prompt_logprobs", 0),
        ("truncate_prompt_tokens", -1),
        ("structural_tag", "{}"),
        ("max_tokens", 0),
        ("logprobs", -1),
        ("logprobs", 21),
    ],
)
def test_sampling_that_cannot_be_honoured_is_refused_by_its_name(field, value):
    with pytest.raises(InvalidRequest, match=rf"sampling_params\.{field} is"):
        request_from_proto(request_with(**{field: value}))


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_transfer_params": pb.KvTransferParams()},
        {"kv_transfer_params_json": "{}"},
        {"mm_inputs": pb.MultimodalInputs()},
        {"extra_mm_inputs": [pb.MultimodalInputs()]},
        {"media_refs": pb.MediaRefs()},
        {"data_parallel_rank": 1},
    ],
)
def test_what_only_other_engines_do_is_refused_by_its_name(fields):
    with pytest.raises(InvalidRequest, match=f"^{next(iter(fields))} is"):
        request_from_proto(pb.GenerateRequest(tokenized=TOKENS, **fields))


def test_a_request_without_a_prompt_is_refused():
    with pytest.raises(InvalidRequest, match="input is not set: send tokenized or text"):
        request_from_proto(pb.GenerateRequest())


def test_rank_0_is_the_only_rank():
    assert request_from_proto(pb.GenerateRequest(text="hi", data_parallel_rank=0)).prompt == "hi"


def test_stop_tokens_are_bounded():
    decoded = request_from_proto(request_with(stop_token_ids=range(MAX_STOP_TOKENS + 1)))
    with pytest.raises(InvalidRequest, match="has 1025 stop tokens: send at most 1024"):
        check_request(decoded)
