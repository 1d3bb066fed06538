"""Whole answers and streams of every API of the gateway, read into one form so that tests can compare them."""

import json
from dataclasses import dataclass

SCHEMA = {"type": "object"}


@dataclass(frozen=True)
class Said:
    """What a client reads. `error` is the code of a failure, and `status` that of the answer.

    `calls` has the arguments of whole calls. One that was cut is in the stream alone, as far as it was written.
    """

    status: int
    text: str = ""
    reason: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    calls: tuple[str, ...] = ()
    reasoning: str = ""
    error: str = ""


def body_of(path, model="", *, stream, schema=None, text="hi", **fields):
    """Return the body of a request with this text of the user."""
    messages = {"messages": [{"role": "user", "content": text}]}
    named = {"type": "json_schema", "name": "n", "schema": schema}
    asks, formatted = {
        "/v1/chat/completions": (messages, {"response_format": {"type": "json_schema", "json_schema": named}}),
        "/v1/completions": ({"prompt": text}, {"response_format": {"type": "json_schema", "json_schema": named}}),
        "/v1/responses": ({"input": text}, {"text": {"format": named}}),
        "/v1/messages": ({**messages, "max_tokens": 99}, {"output_config": {"format": named}}),
        "/api/chat": (messages, {"format": schema}),
        "/api/generate": ({"prompt": text}, {"format": schema}),
    }[path]
    body = {"model": model, "stream": stream, **asks, **fields}
    if schema is not None:
        body |= formatted
    if stream and path in ("/v1/chat/completions", "/v1/completions"):
        body["stream_options"] = {"include_usage": True}
    return body


PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate")
WITH_TOOLS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat")


def data_of(text):
    """Return the JSON of each event or line, read as line readers of Python do."""
    lines = [line for line in text.splitlines() if line and not line.startswith((":", "event: "))]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]


def said_of(path, response, *, stream):
    """Return what a client reads in an answer."""
    if response.status_code != 200:
        return Said(response.status_code, error=code_of(response.json()))
    if stream:
        return _STREAMS[path](data_of(response.text))
    return _WHOLES[path](response.json())


def is_json(text):
    """Return whether a text is whole JSON; the arguments of a call that was cut are not."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def code_of(body):
    """Return the code in a body, or in the data of an event, that says an error."""
    error = body.get("error")
    if isinstance(error, str):
        return body["pagantic"]["code"]
    if isinstance(error, dict):
        return error.get("code") or error["pagantic"]["code"]
    return body.get("code") or ""


def _failed(events):
    return next((Said(200, error=code_of(event)) for event in events if code_of(event)), None)


def _chat(body):
    (choice,) = body["choices"]
    message, usage = choice["message"], body["usage"]
    return Said(
        200,
        message["content"] or "",
        choice["finish_reason"],
        usage["prompt_tokens"],
        usage["completion_tokens"],
        tuple(call["function"]["arguments"] for call in message.get("tool_calls", ())),
        message.get("reasoning_content", ""),
    )


def _chat_stream(chunks):
    if failed := _failed(chunks):
        return failed
    *parts, last = chunks
    deltas = [part["choices"][0]["delta"] for part in parts]
    calls = {}
    for delta in deltas:
        for call in delta.get("tool_calls", ()):
            calls[call["index"]] = calls.get(call["index"], "") + call["function"]["arguments"]
    return Said(
        200,
        "".join(delta.get("content") or "" for delta in deltas),
        parts[-1]["choices"][0]["finish_reason"],
        last["usage"]["prompt_tokens"],
        last["usage"]["completion_tokens"],
        tuple(filter(is_json, calls.values())),
        "".join(delta.get("reasoning_content") or "" for delta in deltas),
    )


def _completion(body):
    (choice,) = body["choices"]
    usage = body["usage"]
    tokens = usage["prompt_tokens"], usage["completion_tokens"]
    return Said(200, choice["text"], choice["finish_reason"], *tokens)


def _completion_stream(chunks):
    if failed := _failed(chunks):
        return failed
    *parts, last = chunks
    text = "".join(part["choices"][0]["text"] for part in parts)
    usage = last["usage"]
    tokens = usage["prompt_tokens"], usage["completion_tokens"]
    return Said(200, text, parts[-1]["choices"][0]["finish_reason"], *tokens)


def _response(body):
    if body["status"] == "failed":
        return Said(200, error=body["error"]["message"].partition(":")[0])
    items = body["output"]
    reason = body["status"] + ((body["incomplete_details"] or {}).get("reason") or "")
    return Said(
        200,
        "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"]),
        reason,
        body["usage"]["input_tokens"],
        body["usage"]["output_tokens"],
        tuple(item["arguments"] for item in items if item["type"] == "function_call"),
        "".join(part["text"] for item in items if item["type"] == "reasoning" for part in item["content"]),
    )


def _response_stream(events):
    """Return the answer in a stream, whose parts must be those of the response at its end."""
    if failed := _failed(event for event in events if event["type"] == "error"):
        return failed
    ended = _response(events[-1]["response"])
    if ended.error:
        return ended
    for kind, whole in (("output_text", ended.text), ("reasoning_text", ended.reasoning)):
        for field in ("delta", "done"):
            named = [event for event in events if event["type"] == f"response.{kind}.{field}"]
            assert "".join(event["delta" if field == "delta" else "text"] for event in named) == whole
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    # A call that was cut is no item of the response, which has an empty message if there is nothing else.
    whole = [item for item in done if item["type"] == "message" or item["status"] != "incomplete"]
    if whole:
        assert events[-1]["response"]["output"] == whole
    return ended


def _message(body):
    blocks, usage = body["content"], body["usage"]
    return Said(
        200,
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        body["stop_reason"] + (body["stop_sequence"] or ""),
        usage["input_tokens"] + usage["cache_read_input_tokens"],
        usage["output_tokens"],
        tuple(json.dumps(block["input"]) for block in blocks if block["type"] == "tool_use"),
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
    )


def _message_stream(events):
    if failed := _failed(events):
        return failed
    blocks = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        if event["type"] == "content_block_delta":
            delta = event["delta"]
            field = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "json"}[delta["type"]]
            blocks[-1][field] += delta["partial_json" if field == "json" else field]
    for block in blocks:
        if block["type"] == "tool_use" and is_json(block["json"]):
            block["input"] = json.loads(block["json"])
    whole = [block for block in blocks if block["type"] != "tool_use" or is_json(block["json"])]
    ending = events[-2]
    return _message({"content": whole, "usage": ending["usage"], **ending["delta"]})


def _ollama(body):
    message = body.get("message") or {"content": body.get("response"), "thinking": body.get("thinking", "")}
    calls = message.get("tool_calls", ())
    return Said(
        200,
        message["content"],
        body["done_reason"],
        body["prompt_eval_count"],
        body["eval_count"],
        tuple(json.dumps(call["function"]["arguments"]) for call in calls),
        message.get("thinking", ""),
    )


def _ollama_stream(lines):
    if failed := _failed(lines):
        return failed
    messages = [line.get("message") or {**line, "content": line.get("response")} for line in lines]
    whole = {
        "content": "".join(message["content"] for message in messages),
        "thinking": "".join(message.get("thinking", "") for message in messages),
        "tool_calls": [call for message in messages for call in message.get("tool_calls", ())],
    }
    return _ollama({**lines[-1], "message": whole})


_WHOLES = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/v1/responses": _response,
    "/v1/messages": _message,
    "/api/chat": _ollama,
    "/api/generate": _ollama,
}
_STREAMS = {
    "/v1/chat/completions": _chat_stream,
    "/v1/completions": _completion_stream,
    "/v1/responses": _response_stream,
    "/v1/messages": _message_stream,
    "/api/chat": _ollama_stream,
    "/api/generate": _ollama_stream,
}
