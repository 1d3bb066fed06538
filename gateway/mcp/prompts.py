"""Offers the prompt templates of the deployment as prompts, which the orchestrator renders."""

from __future__ import annotations

from collections.abc import Mapping

from mcp_types import GetPromptResult, Prompt, PromptArgument, PromptMessage, TextContent

from pagantic.orchestrator.v1 import orchestrator_service_pb2 as pb
from pagantic_common.client import AsyncClient

SESSION_ID = "session_id"


async def list_prompts(client: AsyncClient) -> list[Prompt]:
    """Return the templates. A template that reads values of a conversation also accepts the conversation's id."""
    return [_prompt_of(template) for template in await client.list_prompt_templates()]


async def get_prompt(client: AsyncClient, name: str, arguments: Mapping[str, str]) -> GetPromptResult:
    """Return a rendered template. Raises InvalidRequest for an unknown template or an invalid variable."""
    variables = dict(arguments)
    session_id = ""
    if SESSION_ID in variables and SESSION_ID not in await _variables_of(client, name):
        session_id = variables.pop(SESSION_ID)
    text = await client.render_prompt_template(name, variables, session_id=session_id)
    return GetPromptResult(messages=[PromptMessage(role="user", content=TextContent(text=text))])


async def _variables_of(client: AsyncClient, name: str) -> list[str]:
    return [
        variable
        for template in await client.list_prompt_templates()
        if template.name == name
        for variable in template.variables
    ]


def _prompt_of(template: pb.ConfiguredTemplate) -> Prompt:
    arguments = [PromptArgument(name=name, required=True) for name in template.variables]
    if template.session_keys and SESSION_ID not in template.variables:
        keys = ", ".join(template.session_keys)
        arguments.append(
            PromptArgument(name=SESSION_ID, description=f"Conversation with the values {keys}.", required=False)
        )
    return Prompt(name=template.name, arguments=arguments)
