"""Bodies of requests that the gateway answers, and the same with some values replaced by others."""

import copy
import json

from hypothesis import strategies as st

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
FUNCTION = {"name": "clock", "description": "Tells the time.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
OURS = {
    "mode": "MODE_CHAT",
    "hints": {"timeout": "9s", "priority": -1, "top_k": 4, "tool_choice": {"mode": "TOOL_CHOICE_MODE_AUTO"}},
    "metadata": {"a": "b"},
    "keep_request": True,
    "prompt": {"text": "Be brief."},
}
CALLED = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"a": "b"}'}}
CHAT = {
    "model": "",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALLED]},
        {"role": "tool", "content": "12:00", "tool_call_id": "c1"},
        {"role": "user", "content": "and now?"},
    ],
    "stream": False,
    "stream_options": {"include_usage": True},
    "n": 1,
    "max_completion_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 1,
    "stop": ["x"],
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logit_bias": {"5": 1.0},
    "logprobs": False,
    "top_logprobs": 1,
    "reasoning_effort": "none",
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    "tools": TOOLS,
    "tool_choice": "auto",
    "modalities": ["text"],
    "store": True,
    "metadata": {"a": "b"},
    "pagantic": OURS,
}
RESPONSE = {
    "model": "",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "12:00"},
        {"role": "user", "content": "and now?"},
    ],
    "instructions": "Be brief.",
    "previous_response_id": None,
    "conversation": None,
    "tools": [{"type": "function", "name": "clock", "parameters": SCHEMA, "strict": True}],
    "tool_choice": "auto",
    "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
    "reasoning": {"effort": "low"},
    "max_output_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_logprobs": 1,
    "include": ["message.output_text.logprobs"],
    "metadata": {"a": "b"},
    "store": True,
    "background": False,
    "stream": False,
    "parallel_tool_calls": True,
    "truncation": "disabled",
    "pagantic": OURS,
}
MESSAGES = {
    "model": "",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "tool_use", "id": "c1", "name": "clock", "input": {"a": "b"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "12:00"}]},
    ],
    "stop_sequences": ["x"],
    "stream": False,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "tools": [{"name": "clock", "description": "Tells the time.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "metadata": {"user_id": "u"},
    "pagantic": OURS,
}
OPTIONS = {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "seed": 1, "num_predict": 5, "stop": ["x"]}
OLLAMA = {"model": "", "format": SCHEMA, "options": OPTIONS, "think": True, "stream": False, "pagantic": OURS}
NATIVE = OURS | {
    "messages": [{"role": "ROLE_USER", "content": "hi"}],
    "output": {"schema_json": json.dumps(SCHEMA)},
    "client_tools": [{"name": "clock", "description": "Tells the time.", "parameters_json": json.dumps(SCHEMA)}],
    "tool_rules": [{"tool": "clock", "action": "TOOL_ACTION_ALLOW"}],
}
DECISION = {
    "model": "",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "late again"}]}],
    "questions": [
        {"type": "predicate", "name": "angry", "instructions": "The writer is angry."},
        {"type": "choice", "instructions": "Which?", "choices": [{"value": True}, {"value": "b", "description": "c"}]},
        {"type": "score", "instructions": "How?", "levels": [{"label": "low"}, {"label": "high"}]},
    ],
    "pagantic": {"decisions": {"min_confidence": 0.6}},
}
ITEMS = {"items": [{"type": "message", "role": "user", "content": "hi"}]}
TEXT = {
    "model": "",
    "prompt": ["a", "b"],
    "n": 2,
    "best_of": 2,
    "max_tokens": 4,
    "temperature": 0.5,
    "top_p": 0.9,
    "logprobs": 1,
    "stop": ["x"],
    "seed": 1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logit_bias": {"1": 2},
    "stream": False,
    "stream_options": {"include_usage": True},
    "echo": False,
    "pagantic": {"background": False},
}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/{chat}": {"metadata": {"a": "b"}},
    "/v1/responses": RESPONSE,
    "/v1/responses/compact": RESPONSE,
    "/v1/responses/input_tokens": RESPONSE,
    "/v1/conversations": ITEMS | {"metadata": {"a": "b"}},
    "/v1/conversations/{conversation}": {"metadata": {"a": "b"}},
    "/v1/conversations/{conversation}/items": ITEMS,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": {name: value for name, value in MESSAGES.items() if name != "max_tokens"},
    "/api/chat": OLLAMA | {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS},
    "/api/generate": OLLAMA | {"prompt": "hi", "system": "Be brief."},
    "/api/embed": {"model": "", "input": ["a", "b"], "dimensions": 2, "truncate": True, "keep_alive": "5m"},
    "/api/embeddings": {"model": "", "prompt": "a"},
    "/api/show": {"model": "scripted", "name": ""},
    "/v1/embeddings": {"model": "", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 2},
    "/rerank": {"model": "", "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": True},
    "/v1/decisions": DECISION,
    "/v1/completions": TEXT,
    "/v1/moderations": {"model": "", "input": [{"type": "text", "text": "a"}]},
    "/v1/executions": NATIVE,
    "/v1/approvals/r/c1/decision": {"decision": "APPROVAL_DECISION_APPROVED", "arguments_json": "{}", "reason": "a"},
}
# Bounds of numbers, texts that some layer below may not take, and values of other types.
SCALARS = st.one_of(
    st.sampled_from([None, True, False, "", "\0", "\ud800", "a" * 600, "/", "../x", "$", "{}", "[", "1e999"]),
    st.sampled_from([0, -1, 1, 1 << 31, 1 << 32, 1 << 63, 1 << 64, 10**40, -(10**40), 0.5, -0.0, 1e308, 1e39, 1e-320]),
    st.text(max_size=8),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


@st.composite
def changed(draw, body, max_changes=3):
    """Strategy for a body some of whose values are others, or are left out."""
    made = copy.deepcopy(body)
    for _ in range(draw(st.integers(0, max_changes))):
        if not (places := list(_places(made))):
            break
        holder, key = draw(st.sampled_from(places))
        if isinstance(holder, dict) and draw(st.integers(0, 3)) == 0:
            del holder[key]
        else:
            holder[key] = draw(VALUES)
    return made


def _places(value):
    """Yield the places of the values in a value: what holds each, and its key there."""
    keys = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield value, key
        yield from _places(value[key])
