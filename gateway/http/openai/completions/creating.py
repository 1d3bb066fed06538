"""`/v1/completions`: runs the requests of OpenAI clients."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import JSONResponse

from gateway.http.bodies import apart, read_object
from gateway.http.openai.answers import Heading
from gateway.http.openai.choices import as_choice, execute_all, stream_all
from gateway.http.openai.completions.answers import (
    ID_PREFIX,
    ContinuationChunks,
    ContinuationHead,
    TextCompletion,
    TextEvent,
)
from gateway.http.openai.completions.requests import CompletionForm, completion_requests_of
from gateway.http.openai.forms import read_form, require_model
from gateway.http.openai.models import DefaultName
from gateway.http.operations import OPENAI, Operation
from gateway.http.settings import HttpSettings
from gateway.http.streams.running import Answer
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient


def completion_operations(settings: HttpSettings) -> list[Operation]:
    """Return the operation that continues raw texts."""
    default_name = DefaultName(settings)

    async def create(client: AsyncClient, request: Request, body: bytes) -> Answer:
        """Continue raw texts."""
        value = read_object(body)
        require_model(value)
        form = await apart(body, read_form, value, CompletionForm)
        alias = settings.alias_of(form.model)
        prompt_requests = await apart(body, completion_requests_of, form, alias, settings.call_s)
        request_id = request.scope["request_id"] = prompt_requests[0].request_id or request.scope["request_id"]
        requests = _choices_of(form, prompt_requests, request_id)
        name = await default_name.or_sent(form.model, client, request)
        has_usage = bool(form.stream) and form.includes_usage
        heading = Heading(ID_PREFIX + request_id, name, int(time.time()), has_usage)
        echoes = [choice_request.text_prompt if form.echo else "" for choice_request in requests]
        head = ContinuationHead(heading, echoes, form.ignored, form.choices_per_prompt)
        if not form.stream:
            return JSONResponse(head.whole(await execute_all(client, requests)))
        chunks = [ContinuationChunks(head, index) for index in range(len(requests))]
        return stream_all(client, requests, chunks, head.usage if has_usage else None)

    return [
        Operation(
            OPENAI,
            "POST /v1/completions",
            create,
            "continueTexts",
            CompletionForm,
            TextCompletion,
            TextEvent,
            required=("model", "prompt"),
        )
    ]


def _choices_of(
    form: CompletionForm, asked: list[execution_pb2.SystemRequest], request_id: str
) -> list[execution_pb2.SystemRequest]:
    """Return a request for each choice, in the order of the prompts."""
    count = form.choices_per_prompt
    return [
        as_choice(request, request_id, place * count + number, number)
        for place, request in enumerate(asked)
        for number in range(count)
    ]
