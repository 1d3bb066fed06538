"""Requests to remote engines: schemas in constraints, estimates and settings."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PreconditionFailed
from pagantic_common.domain.messages import Message, ModelInfo, Role, ToolChoice, ToolDefinition
from pagantic_common.domain.sampling import SAMPLING_RANGES
from pagantic_common.grammar.engine_text import (
    engine_text_of_gbnf,
    engine_text_of_regex,
    engine_text_of_schema,
    engine_text_of_values,
)
from pagantic_common.settings import EXIT_CONFIG, load_settings
from services.inference.core.generation import (
    ChatPrompt,
    Constraint,
    ConstraintKind,
    InferenceRequest,
    Reasoning,
    ReasoningMode,
    Sampling,
    TokenPrompt,
)
from services.inference.core.remote.requests import (
    OWN_FIELDS,
    RemoteModel,
    estimate_prompt,
    estimate_text,
    inference_request,
    schema_of,
)
from services.inference.settings import InferenceSettings
from services.inference.wiring.remote_models import endpoint_of

MODEL = RemoteModel(ModelInfo("big", 1000), "org/Big")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def conversation(text="hi", **fields):
    return ChatPrompt((Message(Role.USER, text),), **fields)


def body_of(request):
    return inference_request(request, MODEL, seed=1).body


def test_another_engine_gets_no_empty_messages():
    prompt = ChatPrompt((Message(Role.ASSISTANT, reasoning="hm"), Message(Role.USER), Message(Role.USER, "hi")))
    assert body_of(InferenceRequest(prompt))["messages"] == [{"role": "user", "content": "hi"}]


def test_the_schema_of_an_engine_text_is_the_schema():
    constraint = Constraint(ConstraintKind.ENGINE_TEXT, engine_text_of_schema(json.dumps(SCHEMA)))
    assert schema_of(constraint, "big") == SCHEMA


@pytest.mark.parametrize(
    "text",
    [
        engine_text_of_values(["a", "b"]),
        engine_text_of_regex("a+"),
        engine_text_of_gbnf('root ::= "a"'),
        '{"grammars": []}',
        '{"grammars": [1]}',
        "{",
        "[]",
    ],
)
def test_an_engine_text_of_another_kind_is_refused(text):
    with pytest.raises(InvalidRequest) as refused:
        schema_of(Constraint(ConstraintKind.ENGINE_TEXT, text), "big")
    assert refused.value.code is ErrorCode.CONSTRAINT_GRAMMAR_INVALID


@given(st.text(max_size=200))
def test_a_text_is_at_least_a_token_for_three_bytes_and_no_more(text):
    size = len(text.encode(errors="replace"))
    assert size <= 3 * estimate_text(text) <= size + 2


@given(st.lists(st.text(max_size=20), min_size=1, max_size=5))
def test_a_longer_conversation_is_estimated_longer(texts):
    messages = tuple(Message(Role.USER, text) for text in texts)
    estimates = [estimate_prompt(ChatPrompt(messages[:end])) for end in range(1, len(messages) + 1)]
    assert estimates == sorted(set(estimates))


@given(st.integers(0, 2**64 - 1))
def test_every_seed_fits_into_the_engines_integer(seed):
    sent = inference_request(InferenceRequest("x"), MODEL, seed).body["seed"]
    assert 0 <= sent < 2**63
    assert sent == seed % 2**63


def test_the_output_is_limited_only_where_the_window_leaves_the_default():
    assert "max_tokens" not in body_of(InferenceRequest("x" * 30))
    assert body_of(InferenceRequest("x", max_tokens=3))["max_tokens"] == 3
    wide = RemoteModel(ModelInfo("big", 4096), "x")
    assert inference_request(InferenceRequest("x"), wide, 1).body["max_tokens"] == 2048


def test_values_that_the_caller_did_not_set_are_left_to_the_engine():
    assert "temperature" not in body_of(InferenceRequest("x"))
    sampling = Sampling(temperature=0.8, given=frozenset({"temperature"}))
    assert body_of(InferenceRequest("x", sampling=sampling))["temperature"] == 0.8


def test_a_choice_of_a_tool_that_is_not_offered_is_refused():
    tool = ToolDefinition("stock", "", "")
    with pytest.raises(InvalidRequest) as refused:
        body_of(InferenceRequest(conversation(tools=(tool,), tool_choice=ToolChoice(tool_name="other"))))
    assert refused.value.code is ErrorCode.TOOL_NOT_FOUND
    body = body_of(InferenceRequest(conversation(tools=(tool,))))
    assert body["tools"][0]["function"]["parameters"] == {"type": "object"}


def test_a_constraint_and_an_enforced_choice_are_refused_together():
    prompt = conversation(tools=(ToolDefinition("stock", "", ""),), tool_choice=ToolChoice(tool_name="stock"))
    with pytest.raises(InvalidRequest, match="cannot both"):
        body_of(InferenceRequest(prompt, constraint=Constraint(ConstraintKind.SCHEMA, "{}")))


def test_options_are_fields_of_the_request_and_null_leaves_one_out():
    model = RemoteModel(ModelInfo("big", 1000), "org/Big", extra_body={"provider": "x"})
    request = InferenceRequest("x", options_json='{"reasoning_effort":"low","user":null,"nested":{"a":[1]}}')
    body = inference_request(request, model, 1).body
    assert (body["reasoning_effort"], body["nested"], body["provider"]) == ("low", {"a": [1]}, "x")
    assert "user" not in body


@given(
    st.sampled_from(["hi", conversation(tools=(ToolDefinition("stock", "", ""),))]),
    st.sets(st.sampled_from(sorted(SAMPLING_RANGES))),
    st.sampled_from(ReasoningMode),
    st.booleans(),
)
def test_no_option_may_have_the_name_of_a_field_that_requests_have(prompt, sampled, mode, is_constrained):
    constraint = Constraint(ConstraintKind.SCHEMA, "{}") if is_constrained and prompt != "hi" else None
    request = InferenceRequest(
        prompt,
        max_tokens=3,
        candidate_count=2,
        stop=("x",),
        top_logprobs=1,
        constraint=constraint,
        sampling=Sampling(given=frozenset(sampled), logit_bias={1: 1.0}),
        reasoning=Reasoning(mode),
    )
    assert inference_request(request, MODEL, 1).body.keys() <= OWN_FIELDS


REMOTE = {"url": "https://x/v1", "model": "m", "context_window": 4096}


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"url": "ftp://x"}, "big.url: it must begin with http"),
        ({"url": "http://me:pa55@x/v1"}, "big.url: it must have no user"),
        ({"url": "http://x/v1?key=pa55"}, "big.url: it must have no user, query"),
        ({"context_window": 0}, "big.context_window: "),
        ({"modle": "m"}, "big.modle: "),
        ({"api_key": "pa55"}, "big.api_key: "),
        ({"api_key_env": "A", "api_key_file": "b"}, "both set: keep one"),
        ({"api_key_env": "PAGANTIC_KEY"}, "variables with PAGANTIC_ are settings"),
        ({"max_concurrent": 0}, "big.max_concurrent: "),
        ({"timeout_s": 1e9}, "big.timeout_s: "),
        ({"allowed_options": ["max_tokens"]}, "'max_tokens', which requests set by a field of their own"),
        ({"allowed_options": ["a"], "extra_body": {"a": 1}}, "'a' is in extra_body and in allowed_options"),
        ({"allowed_options": ["a"], "serves": "embeddings"}, "only a model that serves text"),
        ({"allowed_options": [""]}, "big.allowed_options.0: "),
    ],
)
def test_a_wrong_remote_is_named_with_its_field_and_without_secrets(monkeypatch, capsys, fields, wrong):
    monkeypatch.setenv("PAGANTIC_INFERENCE_REMOTES", json.dumps({"big": REMOTE | fields}))
    with pytest.raises(SystemExit) as ended:
        load_settings(InferenceSettings)
    assert ended.value.code == EXIT_CONFIG
    printed = capsys.readouterr().err
    assert printed.startswith("configuration error: PAGANTIC_INFERENCE_REMOTES: ")
    assert wrong in printed
    assert "pa55" not in printed


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"models": {"a": "/m"}, "remotes": {"a": REMOTE}}, "alias 'a' is in two"),
        ({"remotes": {"a": REMOTE}, "routes": {"a": {"models": ["a"]}}}, "alias 'a' is in two"),
        ({"model_path": "none", "embedding_model": "none"}, "set DEFAULT_MODEL"),
        ({"model_path": "none", "models": {"a": "/m"}}, "set DEFAULT_MODEL"),
        ({"model_path": "none", "default_model": "x", "remotes": {"a": REMOTE}}, "set DEFAULT_MODEL"),
        ({"routes": {"r": {"models": []}}}, "r.models"),
        ({"remotes": {"": REMOTE}}, "an alias is empty"),
    ],
)
def test_wrong_aliases_end_the_start(settings, wrong):
    with pytest.raises(ValidationError, match=wrong):
        InferenceSettings(**settings)


def test_a_service_may_have_the_embedding_model_alone():
    assert not InferenceSettings(model_path="none").has_own_model


def test_the_key_is_read_where_the_settings_say(monkeypatch, tmp_path):
    path = tmp_path / "key"
    path.write_text("sk-file\nmore\n")
    settings = InferenceSettings(
        remotes={"env": REMOTE | {"api_key_env": "K"}, "file": REMOTE | {"api_key_file": str(path)}, "none": REMOTE}
    ).remotes
    monkeypatch.setenv("K", " sk-env ")
    keys = {alias: endpoint_of(alias, remote) for alias, remote in settings.items()}
    assert [endpoint.key for endpoint in keys.values()] == ["sk-env", "sk-file", ""]
    assert "sk-" not in repr(keys)
    for value in ("", "two\x01", "ключ"):
        monkeypatch.setenv("K", value)
        with pytest.raises(PreconditionFailed, match="environment variable K must hold") as refused:
            endpoint_of("env", settings["env"])
        assert refused.value.code is ErrorCode.CONFIG_NO_ENGINE
    path.unlink()
    with pytest.raises(PreconditionFailed, match="cannot be read"):
        endpoint_of("file", settings["file"])


def test_tokens_are_no_prompt_for_another_engine():
    prompt = TokenPrompt((1, 2))
    assert estimate_prompt(prompt) == 2
    with pytest.raises(InvalidRequest, match="takes no tokens as a prompt: send text"):
        body_of(InferenceRequest(prompt))
