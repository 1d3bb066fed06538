"""The settings of pulled models: their folder, and their permitted sources."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from pagantic_common.domain.defaults import path_of
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.settings import cache_folder

FOLDER_VARIABLE = "PAGANTIC_MODELS_FOLDER"
HOSTS_VARIABLE = "PAGANTIC_MODELS_HOSTS"


class ModelSettings(BaseSettings):
    """The settings of `pagantic pull`, read from the environment as PAGANTIC_MODELS_<NAME>.

    `folder` is declared here so that its name is known and its value is checked before any service starts. Other code
    calls `models_folder`, which reads no other setting and is therefore fast enough for shell completion.
    """

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="PAGANTIC_MODELS_")

    folder: str = Field("", description="folder of pulled models; empty is `pulled` in pagantic's cache folder")
    hub_endpoint: str = Field("", description="address of the model hub; empty is HF_ENDPOINT, else huggingface.co")
    hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="hosts that https:// URLs may name, also where they redirect to, comma-separated"
    )

    @field_validator("hosts", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(part.strip().lower() for part in value.split(",") if part.strip())

    @field_validator("folder")
    @classmethod
    def _check_folder(cls, value: str) -> str:
        try:
            return str(path_of(FOLDER_VARIABLE, value)) if value else ""
        except InvalidRequest as error:
            raise ValueError(str(error)) from None

    @field_validator("hub_endpoint")
    @classmethod
    def _check_endpoint(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.hostname or parts.username):
            raise ValueError("it must begin with http:// or https:// and name a host")
        return value.rstrip("/")


def models_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the absolute path of the folder of pulled models.

    It is PAGANTIC_MODELS_FOLDER or, if that is unset, `pulled` in the cache folder. Raises InvalidRequest if
    PAGANTIC_MODELS_FOLDER names an unknown user.
    """
    if folder := environment.get(FOLDER_VARIABLE):
        return path_of(FOLDER_VARIABLE, folder)
    return cache_folder(environment).absolute() / "pulled"
