"""Implements ChatTemplate with the model's Jinja template, in a sandbox because model files are untrusted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pagantic_common.domain.errors import ErrorCode, InvalidRequest, PreconditionFailed


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, **_options: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class JinjaChatTemplate:
    """A compiled chat template. Raises PreconditionFailed (CONFIG_NO_ENGINE) if it does not compile."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        if not source:
            raise PreconditionFailed(
                "the model has no chat template: use an instruct model", code=ErrorCode.CONFIG_NO_ENGINE
            )
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise PreconditionFailed(
                f"the model's chat template does not compile: {error}", code=ErrorCode.CONFIG_NO_ENGINE
            ) from None
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self.source = source
        self.knows_tools = "tools" in source

    def render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, thinks: bool | None = None
    ) -> str:
        """Render a conversation up to the start of the assistant's turn."""
        variables: dict[str, Any] = dict(self._tokens)
        if thinks is not None:
            variables |= {"enable_thinking": thinks, "thinking": thinks}
        try:
            return self._template.render(
                messages=list(messages), tools=list(tools) or None, add_generation_prompt=True, **variables
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise InvalidRequest(f"the model's chat template refuses these messages: {error}") from None
