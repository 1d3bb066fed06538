"""The form that the files of MCP servers and of APIs share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class FileEntry(BaseModel):
    """A part of a file; unknown keys are left alone."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)
