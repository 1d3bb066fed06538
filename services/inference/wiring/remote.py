"""Connects models of other engines, and routes over models."""

from __future__ import annotations

import os
from pathlib import Path

from pagantic_common.domain.errors import ErrorCode, PreconditionFailed
from pagantic_common.domain.messages import IMAGES, ModelInfo
from pagantic_common.telemetry.clock import SystemClock
from services.inference.adapters.remote.openai_engine import Endpoint, OpenAiEngine
from services.inference.adapters.remote.transport import ConnectionLimits
from services.inference.app.remote.embedding import RemoteEmbedding
from services.inference.app.remote.generation import RemoteGeneration, RemoteLimits
from services.inference.app.workload import Workload
from services.inference.core import embedding
from services.inference.core.remote.requests import RemoteModel
from services.inference.settings import InferenceSettings, RemoteSettings
from services.inference.wiring.workloads.seeds import new_seed

REMOTE = "remote"
TEXT_CAPABILITIES = ("chat", "tools", "json_schema", REMOTE)
EMBEDDING_CAPABILITIES = (embedding.CAPABILITY, REMOTE)


def describe_remote(alias: str, settings: RemoteSettings) -> ModelInfo:
    """Return the description of a model of another engine, which is not asked for it."""
    capabilities = TEXT_CAPABILITIES if settings.serves == "text" else EMBEDDING_CAPABILITIES
    if settings.takes_images:
        capabilities = (*capabilities, IMAGES)
    return ModelInfo(alias, settings.context_window, capabilities)


def open_remote(alias: str, settings: InferenceSettings) -> Workload:
    """Return a model of another engine; nothing is connected before its first use.

    Raises PreconditionFailed (CONFIG_NO_ENGINE) for a key or a file of authorities that is not there.
    """
    remote = settings.remotes[alias]
    info = describe_remote(alias, remote)
    model = RemoteModel(info, remote.model, remote.max_tokens_field, remote.extra_body)
    connections = ConnectionLimits(
        remote.max_concurrent, remote.connect_timeout_s, remote.timeout_s, remote.max_answer_bytes
    )
    limits = RemoteLimits(remote.max_concurrent, remote.queue_capacity, settings.max_candidates, remote.timeout_s)
    try:
        engine = OpenAiEngine(endpoint_of(alias, remote), connections)
    except OSError as error:
        raise _missing(alias, f"ca_file {remote.ca_file!r} cannot be read ({error.strerror or error})") from None
    if remote.serves == "embeddings":
        return RemoteEmbedding(model, engine, limits, clock=SystemClock())
    return RemoteGeneration(model, engine, limits, clock=SystemClock(), new_seed=new_seed)


def endpoint_of(alias: str, settings: RemoteSettings) -> Endpoint:
    """Return where an engine is, with its key; raises PreconditionFailed (CONFIG_NO_ENGINE) for a missing key."""
    key, name = "", "api_key_env or api_key_file of the alias"
    if settings.api_key_env:
        name = f"the environment variable {settings.api_key_env}"
        key = os.environ.get(settings.api_key_env, "").strip()
    elif settings.api_key_file:
        name = f"the file {settings.api_key_file!r}"
        key = _first_line(alias, settings.api_key_file)
    if (settings.api_key_env or settings.api_key_file) and not _is_header_text(key):
        raise _missing(alias, f"{name} must hold its key, printable ASCII characters")
    return Endpoint(alias, settings.url, key, name, settings.ca_file)


def _first_line(alias: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _missing(alias, f"api_key_file {path!r} cannot be read ({type(error).__name__})") from None


def _is_header_text(key: str) -> bool:
    return bool(key) and key.isascii() and key.isprintable()


def _missing(alias: str, problem: str) -> PreconditionFailed:
    return PreconditionFailed(f"remote model {alias!r}: {problem}", code=ErrorCode.CONFIG_NO_ENGINE)
