"""`python -m tests.conformance.driven_client URL`: uses the service's own sessions as the conformance suite wants.

The suite names the scenario in the environment, and watches what is sent.
"""

import asyncio
import json
import os
import sys
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata
from mcp.types import ElicitResult

from pagantic_common.domain.messages import ToolFailed
from services.tools.adapters.mcp.opening import SessionLimits, SessionOpener, TokensInMemory
from services.tools.core.allowlists import HostAllowlist
from services.tools.core.servers import HttpTransport, ServerSpec
from services.tools.ports import ServerLost

SCENARIO = os.environ["MCP_CONFORMANCE_SCENARIO"]
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
REDIRECT = "http://localhost:3000/callback"
METADATA_URL = "https://conformance-test.local/client-metadata.json"
# Arguments of the tools that take some.
ARGUMENTS = {"add_numbers": {"a": 5, "b": 3}}
REQUEST_TIMEOUT_S = 60.0


class BrowserOfNobody:
    """Follows an authorization server's redirect as a browser of a user would who agrees to everything."""

    def __init__(self):
        self._answer = {}

    async def open(self, url):
        async with httpx2.AsyncClient() as client:
            response = await client.get(url)
        self._answer = parse_qs(urlsplit(response.headers["location"]).query)

    async def result(self):
        first = {name: values[0] for name, values in self._answer.items()}
        return AuthorizationCodeResult(code=first.get("code", ""), state=first.get("state"), iss=first.get("iss"))


async def auth_for(url):
    """Return what gets tokens in this scenario; None where none are asked for."""
    if not SCENARIO.startswith("auth/"):
        return None
    kind = SCENARIO.removeprefix("auth/")
    if kind == "client-credentials-basic":
        return ClientCredentialsOAuthProvider(url, TokensInMemory(), CONTEXT["client_id"], CONTEXT["client_secret"])
    if kind == "client-credentials-jwt":
        signed = SignedJWTParameters(
            issuer=CONTEXT["client_id"],
            subject=CONTEXT["client_id"],
            signing_key=CONTEXT["private_key_pem"],
            signing_algorithm=CONTEXT.get("signing_algorithm", "ES256"),
        )
        provider = signed.create_assertion_provider()
        return PrivateKeyJWTOAuthProvider(url, TokensInMemory(), CONTEXT["client_id"], assertion_provider=provider)
    return await _authorization_code(url)


async def _authorization_code(url):
    tokens, browser = TokensInMemory(), BrowserOfNobody()
    metadata = OAuthClientMetadata(
        client_name="pagantic",
        redirect_uris=[REDIRECT],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
    )
    if "client_id" in CONTEXT:
        registered = OAuthClientInformationFull(
            client_id=CONTEXT["client_id"],
            client_secret=CONTEXT.get("client_secret"),
            issuer=CONTEXT.get("issuer"),
            redirect_uris=[REDIRECT],
            token_endpoint_auth_method="client_secret_basic",  # noqa: S106 - the name of a method
        )
        await tokens.set_client_info(registered)
    return OAuthClientProvider(url, metadata, tokens, browser.open, browser.result, client_metadata_url=METADATA_URL)


async def accept_with_defaults(_context, params):
    """Answer a server's form with the defaults of its fields."""
    fields = params.requested_schema.get("properties", {})
    content = {name: field["default"] for name, field in fields.items() if "default" in field}
    return ElicitResult(action="accept", content=content or {"confirmed": True})


async def call(session, name, arguments):
    try:
        await session.call_tool(name, arguments, lambda _: None)
    except ToolFailed as failed:
        sys.stderr.write(f"{name} failed: {failed}\n")


async def use_everything(session):
    """List and use all that the server has."""
    tools = [tool for tool in (await session.list_tools()).tools if not tool.defect]
    for wanted in CONTEXT.get("toolCalls") or [
        {"name": tool.name, "arguments": ARGUMENTS.get(tool.name, {})} for tool in tools
    ]:
        await call(session, wanted["name"], wanted["arguments"])
    if SCENARIO.startswith("json-schema-2020-12"):
        schemas = [json.loads(tool.parameters_json) for tool in tools if tool.name != "json_schema_echo"]
        await call(session, "json_schema_echo", {"schema": schemas[0]})
    if SCENARIO != "http-standard-headers":
        return
    for resource in (await session.list_resources("")).items:
        await session.read_resource(resource.uri)
    for prompt in (await session.list_prompts("")).items:
        await session.get_prompt(prompt.name, {})


async def main(url):
    limits = SessionLimits(request_timeout_s=REQUEST_TIMEOUT_S)
    opener = SessionOpener(limits, auth=await auth_for(url), elicit=accept_with_defaults)
    # The suite's authorization servers have ports of their own.
    hosts = HostAllowlist.parse(["localhost", "127.0.0.0/8", "::1"])
    plain = HttpTransport.parse(url)
    spec = ServerSpec("conformance", HttpTransport(url, plain.host, plain.port, hosts))
    async with opener.open(spec) as session:
        await use_everything(session)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[-1]))
    except ServerLost as lost:
        sys.exit(f"lost: {lost}")
