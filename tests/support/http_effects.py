"""What bodies of the HTTP gateway lead to: the calls of the orchestrator, the answer, and the fields that it names."""

import base64
import copy
import json
import re
import types
from dataclasses import dataclass
from typing import Annotated, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.openai.forms import Form, read_form
from gateway.http.serving import described_operations
from gateway.http.settings import HttpSettings
from gateway.web.forms import Items
from pagantic.common.v1 import message_pb2
from pagantic.inference.v1 import inference_service_pb2
from pagantic.orchestrator.v1 import decision_pb2, event_pb2, execution_pb2, session_pb2
from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.domain.errors import InvalidRequest
from tests.support.http_requests import BODIES, CALLED, DECISION, MESSAGES, OLLAMA, SCHEMA, TOOLS
from tests.support.sample_images import sample_image

SETTINGS = HttpSettings(models={}, moderation_model="")
OPERATIONS = {
    operation.path: operation
    for operation in described_operations(SETTINGS)
    if operation.form is not None and issubclass(operation.form, Form)
}
PARAMETERS = {"completion_id": "chatcmpl-kept", "conversation_id": "conv_a"}
# Values of answers that differ between two equal requests.
_VOLATILE = frozenset({"created", "created_at", "completed_at", "id", "ignored", "load_duration", "total_duration"})
_TIME = re.compile(r'"created(_at)?": \d+')


@dataclass(frozen=True)
class Effect:
    """The calls of the orchestrator and the answer, or the refusal; and the fields named as ignored."""

    calls: str
    answer: str
    ignored: tuple[str, ...] = ()
    is_refused: bool = False


class Recorder:
    """Stands for the client of the orchestrator: records calls, and gives answers that have no content of their own."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        async def call(*args, **fields):
            self._record(name, args, fields)
            return _answer_of(name, args)

        return call

    def stream(self, request):
        self._record("stream", (request,), {})

        async def events():
            yield event_pb2.ExecutionEvent(completed=event_pb2.Completed(response=_response_to(request)))

        return events()

    def _record(self, name, args, fields):
        self.calls.append((name, [_plain(arg) for arg in args], {key: _plain(arg) for key, arg in fields.items()}))


def _plain(value):
    if isinstance(value, Message):
        return value.SerializeToString(deterministic=True)
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, str) and value.startswith("conv_") and value != PARAMETERS["conversation_id"]:
        return "conv_new"
    return value


def _response_to(request):
    response = execution_pb2.SystemResponse(request_id=request.request_id, content="hello")
    for question in request.decisions.questions:
        options, levels = len(question.choice.options), len(question.score.levels)
        choice = decision_pb2.ChoiceAnswer(index=0, probabilities=[0.5] * options) if options else None
        score = decision_pb2.ScoreAnswer(score=0.5, probabilities=[0.5] * levels) if levels else None
        response.decisions.add(name=question.name, choice=choice, score=score)
    return response


def _answer_of(name, args):
    make = {
        "execute": _response_to,
        "embed": _embedded,
        "rerank": _ranked,
        "get_session": _session,
        "get_session_page": _session,
        "update_session": _session,
        "get_execution": _kept_execution,
        "update_execution": _kept_execution,
    }.get(name)
    if make is not None:
        return make(*args[:2])
    if name == "list_models":
        capabilities = ("chat", "embed", "score_pairs")
        return [message_pb2.ModelInfo(name=name, capabilities=capabilities) for name in ("a", "b", "scripted")]
    if name == "count_tokens":
        return inference_service_pb2.CountTokensResponse(chat_tokens=3)
    return ""


def _embedded(texts):
    vectors = [inference_service_pb2.Embedding(values=[1.0, 2.0, 3.0, 4.0]) for _ in texts]
    return inference_service_pb2.EmbedResponse(embeddings=vectors)


def _ranked(_query, texts):
    return pb.RerankResponse(results=[pb.RerankedText(index=index) for index in range(len(texts))])


def _session(*_):
    return session_pb2.Session(session_id="conv_a")


def _kept_execution(request_id, *_):
    kind = "chat.completion" if request_id == "kept" else "response"
    echo = {"model": "a", "created": 7, "created_at": 7, "metadata": {}, "n": 1}
    request = execution_pb2.SystemRequest(
        messages=[message_pb2.Message(role=message_pb2.ROLE_USER, content=request_id)]
    )
    return execution_pb2.Execution(
        request_id=request_id,
        request=request,
        response=execution_pb2.SystemResponse(request_id=request_id, content="hello"),
        metadata={"openai.object": kind, "openai.request": json.dumps(echo)},
    )


async def effect_of(path, body):
    """Return what a body leads to."""
    recorder = Recorder()
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [],
        "query_string": b"",
        "path_params": PARAMETERS,
        "request_id": "r",
    }
    try:
        answer = await OPERATIONS[path].handle(recorder, Request(scope), json.dumps(body).encode())
        if isinstance(answer, Response):
            parts = [json.loads(answer.body)]
        else:
            parts = [part async for text in answer for part in _sent(text)]
    except InvalidRequest as refused:
        return Effect("", str(refused), is_refused=True)
    # The gateway keeps the list of models for a while, so that not each request reads it.
    calls = [call for call in recorder.calls if call[0] != "list_models"]
    return Effect(_TIME.sub("", repr(calls)), json.dumps(_stable(parts)), tuple(sorted(set(_ignored_in(parts)))))


def _ignored_in(value):
    """Yield the fields that the extensions in an answer name as ignored."""
    if isinstance(value, dict):
        yield from value.get("pagantic", {}).get("ignored", ())
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _ignored_in(part)


def _sent(text):
    """Yield the values in server-sent events or lines."""
    for line in text.splitlines():
        data = line.removeprefix("data: ")
        if data.startswith("{"):
            yield json.loads(data)


def _stable(value):
    if isinstance(value, list):
        return [_stable(part) for part in value]
    if isinstance(value, dict):
        kept = {name: _stable(part) for name, part in value.items() if name not in _VOLATILE}
        return {name: part for name, part in kept.items() if name != "pagantic" or part}
    return value


def places_in(path, body):
    """Yield the objects of a body that are forms: each with its keys, and its form."""
    yield from _places(read_form(body, OPERATIONS[path].form), body, ())


def _places(value, body, keys):
    if isinstance(value, Form):
        yield keys, value
        names = {name: field.alias or name for name, field in type(value).model_fields.items()}
        for name, key in names.items():
            if key in body:
                yield from _places(getattr(value, name), body[key], (*keys, key))
    elif isinstance(value, list) and isinstance(body, list):
        for index, part in enumerate(value):
            yield from _places(part, body[index], (*keys, index))
    elif isinstance(value, dict) and isinstance(body, dict):
        for key, part in value.items():
            yield from _places(part, body[key], (*keys, key))


ABSENT = object()


def changed_at(body, keys, name, value):
    """Return a body in which the field of an object is another, or absent."""
    made = copy.deepcopy(body)
    holder = made
    for key in keys:
        holder = holder[key]
    holder.pop(name, None)
    if value is not ABSENT:
        holder[name] = value
    return made


def path_of(keys, name):
    """Return a field's path as answers name it, without positions."""
    text = ""
    for key in (*keys, name):
        text += "[]" if isinstance(key, int) else f".{key}"
    return text.removeprefix(".")


# Values of fields whose type alone does not say what is legal. A discriminator has only the values of BODIES.
LEGAL = {
    "messages": [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]],
    "logit_bias": [{"5": 1.0}, {"5": 2.0}],
    "pagantic": [{"hints": {"max_tool_rounds": 1}}, {"hints": {"max_tool_rounds": 2}}],
    "url": [f"data:image/png;base64,{base64.b64encode(sample_image()).decode()}"],
}


def values_of(annotation, metadata=()):
    """Yield lists of legal values of a type, the values of one list all of one form."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from values_of(args[0], (*metadata, *args[1:]))
    elif origin in (Union, types.UnionType):
        for arg in args:
            yield from values_of(arg, metadata)
    elif origin is Literal:
        yield list(args)
    elif origin in (list, dict):
        for values in values_of(args[-1]):
            yield [_container_of(origin, value, metadata) for value in values]
    elif isinstance(annotation, type) and issubclass(annotation, Form):
        yield _objects_of(annotation)
    elif annotation is not type(None):
        yield _scalars_of(annotation, metadata)


def _container_of(kind, value, metadata):
    if kind is dict:
        return {"a": value}
    return [value] * max((limit.minimum or 1 for limit in metadata if isinstance(limit, Items)), default=1)


def _scalars_of(annotation, metadata):
    if annotation is bool:
        return [False, True]
    if annotation is int:
        least = max((limit.ge for limit in metadata if isinstance(limit, Ge)), default=0)
        most = min((limit.le for limit in metadata if isinstance(limit, Le)), default=least + 2)
        return [value for value in (least + 1, least + 2) if value <= most]
    if annotation is float:
        return [0.25, 0.5]
    return ["a", "b"]


def _objects_of(kind):
    """Return objects of a form that differ in each required field, or in the first field if none is required."""
    fields = kind.model_fields
    required = {name: field for name, field in fields.items() if field.is_required()}
    chosen = required or dict(list(fields.items())[:1])
    values = {field.alias or name: legal_values(name, field)[0] for name, field in chosen.items()}
    count = max(map(len, values.values()))
    return [{name: some[index % len(some)] for name, some in values.items()} for index in range(min(count, 3))]


def legal_values(name, field):
    """Return lists of values of a field that are likely to be legal."""
    if name in LEGAL:
        return [LEGAL[name]]
    return list(values_of(field.annotation, tuple(field.metadata)))


PICTURE = base64.b64encode(sample_image()).decode()
URL = f"data:image/png;base64,{PICTURE}"
SAID = [{"role": "user", "content": "hi"}]
CHOICE = {"type": "function", "function": {"name": "clock"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CHOICE]}}
SCHEMA_FORMAT = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
FUNCTION_TOOL = {"type": "function", "name": "clock", "description": "Tells the time.", "parameters": SCHEMA}
# More bodies, for forms and types that those of BODIES do not have.
MORE = {
    "/v1/chat/completions": [
        {
            "model": "a",
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]},
                {"role": "user", "content": [{"type": "image_url", "image_url": URL}]},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
                {"role": "assistant", "refusal": "no"},
                {"role": "user", "content": "hi"},
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "logprobs": True,
            "top_logprobs": 2,
            "max_tokens": 5,
            "tools": [*TOOLS, {"type": "custom", "custom": {"name": "sed"}}],
            "tool_choice": CHOICE,
            "response_format": {"type": "json_object"},
        },
        {"model": "a", "messages": SAID, "tools": TOOLS, "tool_choice": ALLOWED, "store": True, "metadata": {"a": "b"}},
        {"model": "a", "messages": SAID, "functions": [TOOLS[0]["function"]], "function_call": {"name": "clock"}},
        {"model": "a", "messages": SAID, "response_format": {"type": "text"}},
        {"model": "a", "messages": [*SAID, {"role": "assistant", "tool_calls": [CALLED]}, *SAID]},
    ],
    "/v1/completions": [{"model": "a", "prompt": "a", "stream": True, "stream_options": {"include_usage": True}}],
    "/v1/responses": [
        {
            "model": "a",
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": URL}]},
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
                {"type": "function_call", "call_id": "c1", "namespace": "time", "name": "clock", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "12"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
                {"type": "compaction", "encrypted_content": base64.b64encode(b'{"summary":"a"}').decode()},
                {"role": "user", "content": "hi"},
            ],
            "tools": [
                FUNCTION_TOOL | {"name": "lamp"},
                {"type": "namespace", "name": "time", "description": "Time.", "tools": [FUNCTION_TOOL]},
                {"type": "web_search"},
            ],
            "tool_choice": {"type": "function", "name": "lamp"},
            "text": {"format": SCHEMA_FORMAT | {"description": "b"}},
            "previous_response_id": "resp_a",
            "stream": True,
        },
        {
            "model": "a",
            "input": "hi",
            "conversation": {"id": "conv_a"},
            "prompt": {"id": "greeting", "variables": {"a": {"type": "input_text", "text": "b"}, "c": "d"}},
            "text": {"format": {"type": "text"}},
            "tools": [FUNCTION_TOOL],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "clock"}]},
            "store": False,
        },
    ],
    "/v1/messages": [
        {
            "model": "a",
            "max_tokens": 5,
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
                        {"type": "text", "text": "What?"},
                    ],
                },
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "clock", "input": {}}]},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "12"}]}
                    ],
                },
            ],
            "tools": [MESSAGES["tools"][0], {"type": "web_search_20250305", "name": "web_search"}],
            "tool_choice": {"type": "tool", "name": "clock"},
            "thinking": {"type": "adaptive"},
            "stream": True,
            "metadata": {"user_id": "u"},
        },
        {"model": "a", "max_tokens": 5, "messages": SAID, "system": "Be brief."},
    ],
    "/api/chat": [
        OLLAMA
        | {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "hi", "images": [PICTURE]},
                {
                    "role": "assistant",
                    "content": "",
                    "thinking": "hm",
                    "tool_calls": [{"id": "c1", "function": {"name": "clock", "arguments": {"a": "b"}}}],
                },
                {"role": "tool", "content": "12:00", "tool_name": "clock", "tool_call_id": "c1"},
            ],
            "tools": TOOLS,
            "format": "json",
            "think": "high",
            "stream": True,
        }
    ],
    "/api/generate": [{"model": "a", "prompt": "hi", "raw": True}, {"model": "a", "prompt": "hi", "images": [PICTURE]}],
    "/v1/decisions": [
        DECISION
        | {
            "input": [
                {"role": "user", "content": [{"type": "input_json", "data": {"a": 1}}]},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
                {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "12:00"},
                {"type": "custom_tool_call", "call_id": "c2", "name": "sed", "input": "a"},
                {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "b"}]},
            ]
        },
        DECISION | {"input": "late again"},
    ],
    "/v1/moderations": [{"input": "a"}, {"model": "a", "input": ["a", "b"]}],
    "/v1/embeddings": [{"input": "a"}],
    "/rerank": [{"query": "a", "documents": ["b", {"text": "c", "title": "d"}]}],
}
_TEMPLATES = {"{chat}": "{completion_id}", "{conversation}": "{conversation_id}"}


def bodies():
    """Return the bodies of all operations that have forms: pairs of a path and a body."""
    pairs = []
    for template, body in BODIES.items():
        path = template
        for short, name in _TEMPLATES.items():
            path = path.replace(short, name)
        if path in OPERATIONS:
            pairs += [(path, one) for one in (body, *MORE.get(path, ()))]
    return pairs
