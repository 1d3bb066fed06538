"""Resolves the references of a request of `/v1/responses`, and makes the orchestrator's request."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from gateway.http.bodies import take_request_id
from gateway.http.openai.responses.forms import ResponseForm
from gateway.http.openai.responses.requests import system_request_of
from gateway.http.openai.responses.stored import said_before
from gateway.http.settings import HttpSettings
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client import AsyncClient


async def resolve(
    client: AsyncClient, form: ResponseForm, request: Request, settings: HttpSettings
) -> execution_pb2.SystemRequest:
    """Return the request of a form, with the id that the client receives.

    Raises NotFound for an unknown conversation or previous response, InvalidRequest for unsupported features.
    """
    earlier = await earlier_messages(client, form)
    is_stored = bool(form.conversation_id)
    made = system_request_of(form, settings.alias_of(form.model), settings.call_s, earlier, stored=is_stored)
    take_request_id(made, request)
    return made


async def earlier_messages(client: AsyncClient, form: ResponseForm) -> Sequence[message_pb2.Message]:
    """Return the earlier messages, of the conversation or up to the response that a form names; raises NotFound."""
    if form.conversation_id:
        return (await client.get_session(form.conversation_id)).messages
    if form.previous_response_id:
        return await said_before(client, form.previous_response_id)
    return ()
