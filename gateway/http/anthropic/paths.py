"""The operations of Anthropic's API: messages, and models, whose paths are the same as in OpenAI's API."""

from __future__ import annotations

from typing import Literal, NotRequired

from pydantic import RootModel
from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.anthropic.answers import (
    ANTHROPIC,
    AnthropicError,
    AnthropicMessage,
    MessageEvent,
    MessageEvents,
    MessageHead,
    message_of,
)
from gateway.http.anthropic.forms import CountTokensForm, MessagesForm
from gateway.http.anthropic.requests import system_request_of
from gateway.http.bodies import AnswerShape, apart, read_object, take_request_id
from gateway.http.failures import OpenAIError
from gateway.http.openai.answers import completed
from gateway.http.openai.counting import count_prompt
from gateway.http.openai.forms import IgnoredFields, naming_ignored, read_form
from gateway.http.openai.models import DefaultName, ModelFacts, ModelList, ModelObject, find_model, list_models
from gateway.http.openai.pages import Deleted
from gateway.http.operations import Dialect, Operation, Parameter
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from gateway.http.streams.sending import encode_sent_events, send_answer
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import PermissionDenied

VERSION_HEADER = "anthropic-version"
MESSAGES_PATH = "/v1/messages"
_MODEL = "/v1/models/{name:path}"
_PING = encode_sent_events([{"type": "ping"}])
_UNKNOWN_TIME = "1970-01-01T00:00:00Z"


class AnthropicModel(AnswerShape):
    """A model in the form of Anthropic's API."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: str
    max_input_tokens: NotRequired[int]
    pagantic: NotRequired[ModelFacts]


class AnthropicModelList(AnswerShape):
    """The models in the form of Anthropic's API."""

    data: list[AnthropicModel]
    first_id: str
    last_id: str
    has_more: bool


class CountedTokens(AnswerShape):
    """The number of tokens that a message would read."""

    input_tokens: int
    pagantic: NotRequired[IgnoredFields]


class AnyModelList(RootModel[ModelList | AnthropicModelList]):
    """The models in the form of the client's API."""


class AnyModel(RootModel[ModelObject | AnthropicModel]):
    """A model in the form of the client's API."""


class ModelError(RootModel[OpenAIError | AnthropicError]):
    """An error of a path that both APIs use."""


_MODELS = Dialect("OpenAI and Anthropic", ModelError)


def anthropic_operations(settings: HttpSettings) -> list[Operation]:
    """Return the operations of this API."""
    default_name = DefaultName(settings)

    async def create(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Answer a conversation."""
        form = await apart(body, read_form, read_object(body), MessagesForm)
        sent = await apart(body, system_request_of, form, settings.alias_of(form.model), settings.call_s)
        take_request_id(sent, request)
        name = await default_name.or_sent(form.model, client, request)
        head = MessageHead(f"msg_{sent.request_id}", name, form.ignored)
        if form.stream:
            return send_answer(client.stream(sent), MessageEvents(head), sent.request_id, quiet=_PING)
        return JSONResponse(message_of(head, completed(await client.execute(sent))))

    async def count(client: AsyncClient, _request: Request, body: bytes) -> Answer:
        """Count the tokens that a message would read."""
        form = await apart(body, read_form, read_object(body), CountTokensForm)
        sent = await apart(body, system_request_of, form, settings.alias_of(form.model), settings.call_s)
        answer: CountedTokens = {"input_tokens": await count_prompt(client, sent)}
        return JSONResponse(naming_ignored(answer, form))

    async def list_(client: AsyncClient, request: Request, _body: bytes) -> Answer:
        """List the models."""
        models = await list_models(client, settings)
        return JSONResponse(_list_of(models) if VERSION_HEADER in request.headers else models)

    async def retrieve(client: AsyncClient, request: Request, _body: bytes) -> Answer:
        """Get a model."""
        model = await find_model(client, settings, request.path_params["name"])
        return JSONResponse(_model_of(model) if VERSION_HEADER in request.headers else model)

    async def delete(client: AsyncClient, request: Request, _body: bytes) -> Answer:
        """Reject the deletion, because requests cannot change the models of a deployment."""
        model = await find_model(client, settings, request.path_params["name"])
        raise PermissionDenied(
            f"model {model['id']!r} cannot be deleted by a request: models are the deployment's, so have its operator "
            "change MODEL_PATH, ROUTES or REMOTES of the inference service, or MODELS of this gateway"
        )

    summary = "With it, the answer is that of Anthropic's API."
    by_version = (Parameter(VERSION_HEADER, {"type": "string"}, summary, "header"),)
    return [
        Operation(
            ANTHROPIC, f"POST {MESSAGES_PATH}", create, "createMessage", MessagesForm, AnthropicMessage, MessageEvent
        ),
        Operation(
            ANTHROPIC, f"POST {MESSAGES_PATH}/count_tokens", count, "countTokens", CountTokensForm, CountedTokens
        ),
        Operation(
            _MODELS,
            "GET /v1/models",
            list_,
            "listModels",
            answer=AnyModelList,
            parameters=by_version,
            reads_stored=False,
        ),
        Operation(
            _MODELS,
            f"GET {_MODEL}",
            retrieve,
            "getModel",
            answer=AnyModel,
            parameters=by_version,
            reads_stored=False,
        ),
        Operation(_MODELS, f"DELETE {_MODEL}", delete, "deleteModel", answer=Deleted),
    ]


def _list_of(models: ModelList) -> AnthropicModelList:
    listed = [_model_of(model) for model in models["data"]]
    first, last = (listed[0]["id"], listed[-1]["id"]) if listed else ("", "")
    return {"data": listed, "first_id": first, "last_id": last, "has_more": False}


def _model_of(model: ModelObject) -> AnthropicModel:
    answer: AnthropicModel = {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": _UNKNOWN_TIME,
        "lifecycle": "active",
    }
    if "pagantic" in model:
        answer["max_input_tokens"] = model["pagantic"]["context_window"]
        answer["pagantic"] = model["pagantic"]
    return answer
