"""PromptProvider and TemplateCatalog over a folder of templates, `<name>.txt` or `<name>.md`, read once at start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pagantic_common.domain.errors import ErrorCode, InvalidRequest
from pagantic_common.domain.ids import is_id
from services.orchestrator.core.conversation.prompt_template import PromptTemplate, PromptTemplateError
from services.orchestrator.core.model.request import Request, TemplateCall
from services.orchestrator.ports.services import ConfiguredTemplate

SUFFIXES = (".md", ".txt")


class PromptFolder:
    """The templates of a folder. Raises InvalidRequest with the name of an unusable folder or file.

    Files with other suffixes and hidden files are ignored.
    """

    def __init__(self, folder: Path | None) -> None:
        self._templates: dict[str, PromptTemplate] = {}
        if folder is None:
            return
        try:
            paths = sorted(folder.iterdir())
        except OSError as error:
            raise InvalidRequest(f"the prompt folder {str(folder)!r} cannot be read: {error.strerror}") from None
        for path in paths:
            if path.suffix in SUFFIXES and not path.name.startswith(".") and path.is_file():
                self._add(path)

    async def system_prompt(self, request: Request, session: Mapping[str, str]) -> str:
        """Return the request's text, instructions, or rendered template."""
        if request.prompt.template is None:
            return request.prompt.render()
        return self.render(request.prompt.template, session)

    def templates(self) -> tuple[ConfiguredTemplate, ...]:
        """Return the templates by name."""
        return tuple(
            ConfiguredTemplate(name, tuple(sorted(template.names)), tuple(sorted(template.session_keys)))
            for name, template in sorted(self._templates.items())
        )

    def render(self, template: TemplateCall, session: Mapping[str, str]) -> str:
        """Return the text of a template; raises InvalidRequest (CONFIG_INVALID)."""
        found = self._templates.get(template.name)
        if found is None:
            known = ", ".join(sorted(self._templates)) or "none"
            raise InvalidRequest(
                f"prompt.template: no template is named {template.name!r}; configured: {known}",
                code=ErrorCode.CONFIG_INVALID,
            )
        try:
            return found.render(dict(template.variables), session)
        except PromptTemplateError as error:
            raise InvalidRequest(f"prompt.template {template.name!r}: {error}", code=ErrorCode.CONFIG_INVALID) from None

    def _add(self, path: Path) -> None:
        problem = ""
        if not is_id(path.stem):
            problem = "its name does not match [A-Za-z0-9._:-]{1,128}"
        elif path.stem in self._templates:
            problem = f"another file gives the template {path.stem!r} too"
        else:
            try:
                self._templates[path.stem] = PromptTemplate(path.read_text(encoding="utf-8-sig"))
            except (OSError, UnicodeDecodeError, PromptTemplateError) as error:
                problem = str(error)
        if problem:
            raise InvalidRequest(f"the prompt template {path.name!r} cannot be used: {problem}")
