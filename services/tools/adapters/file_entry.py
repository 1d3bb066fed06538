"""The base model for the configuration files of MCP servers and APIs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class FileEntry(BaseModel):
    """A part of a configuration file. Unknown keys are ignored."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)
