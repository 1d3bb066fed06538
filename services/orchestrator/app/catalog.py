"""The tools and prompt templates that the deployment offers to its callers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, NotFound, PreconditionFailed
from pagantic_common.domain.ids import require_id
from pagantic_common.grammar.arguments import ArgumentChecker, InvalidArguments
from services.orchestrator.app.services import ListTools, Services
from services.orchestrator.core.model.keys import SessionKey
from services.orchestrator.core.model.request import TemplateCall
from services.orchestrator.core.tools.policy import ToolAction, ToolPolicies
from services.orchestrator.ports.journal import Conversations
from services.orchestrator.ports.services import (
    ConfiguredTemplate,
    OfferedTool,
    TemplateCatalog,
)


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that callers may name in requests, and the policy's action for calls of the tool."""

    offered: OfferedTool
    action: ToolAction


class ToolCatalog:
    """The deployment's tools, except tools that its policy denies."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._policies = ToolPolicies(services.tool_policy)

    async def list(self) -> list[CallableTool]:
        """Return the tools that the policy does not deny, in order of name."""
        listed = [
            CallableTool(offered, self._policies.action_for(offered.definition))
            for offered in await self._services.do(ListTools())
        ]
        return [tool for tool in listed if tool.action is not ToolAction.DENY]

    async def check_arguments(self, name: str, arguments_json: str) -> None:
        """Check the arguments of a call against the tool's schema, as the tool itself does before it runs.

        Raises InvalidRequest (TOOL_INVALID_ARGUMENTS) if they violate it, PreconditionFailed (TOOL_NOT_FOUND) if the
        tool no longer exists, and Unavailable if the tools service does not answer.
        """
        try:
            (tool,) = await self._services.do(ListTools([name]))
        except NotFound as error:
            raise PreconditionFailed(f"tool {name!r} is no longer there: {error}", code=error.code) from None
        try:
            ArgumentChecker(name, tool.definition.parameters_json).parse(arguments_json)
        except InvalidArguments as error:
            message = f"arguments_json does not fit tool {name!r}: {error}"
            raise InvalidRequest(message, code=ErrorCode.TOOL_INVALID_ARGUMENTS, details=error.details) from None


class Templates:
    """The deployment's prompt templates, which may read values from conversations."""

    def __init__(self, catalog: TemplateCatalog, conversations: Conversations) -> None:
        self._catalog = catalog
        self._conversations = conversations

    def list(self) -> tuple[ConfiguredTemplate, ...]:
        """Return the templates, sorted by name."""
        return self._catalog.templates()

    async def render(self, template: TemplateCall, key: SessionKey) -> str:
        """Return the text of a template. A key without a session id selects no conversation.

        Raises InvalidRequest if the template is unknown, a variable is missing or unknown, or an id is malformed.
        """
        require_id("template.name", template.name)
        session: Mapping[str, str] = {}
        if key.session_id:
            require_id("session_id", key.session_id)
            session = await self._conversations.session_state(key)
        return self._catalog.render(template, session)
