"""Lists and renders the prompt templates of the deployment, outside of executions."""

from __future__ import annotations

from collections.abc import Mapping

from pagantic_common.domain.ids import require_id
from services.orchestrator.core.model.keys import SessionKey
from services.orchestrator.core.model.request import TemplateCall
from services.orchestrator.ports.journal import Conversations
from services.orchestrator.ports.services import ConfiguredTemplate, TemplateCatalog


class Templates:
    """The templates, and the conversations whose values they read."""

    def __init__(self, catalog: TemplateCatalog, conversations: Conversations) -> None:
        self._catalog = catalog
        self._conversations = conversations

    def list(self) -> tuple[ConfiguredTemplate, ...]:
        """Return the templates by name."""
        return self._catalog.templates()

    async def render(self, template: TemplateCall, key: SessionKey) -> str:
        """Return the text of a template; a key without an id names no conversation.

        Raises InvalidRequest for an unknown template, a wrong variable or an id that cannot be.
        """
        require_id("template.name", template.name)
        session: Mapping[str, str] = {}
        if key.session_id:
            require_id("session_id", key.session_id)
            session = await self._conversations.session_state(key)
        return self._catalog.render(template, session)
