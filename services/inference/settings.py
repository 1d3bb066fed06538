"""Settings of the inference service, read as PAGANTIC_INFERENCE_<NAME>."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import SettingsConfigDict

from pagantic_common.settings import InnerSettings

AUTO: Literal["auto"] = "auto"
BUNDLED: Literal["bundled"] = "bundled"
ExpandedPath = Annotated[str, AfterValidator(os.path.expanduser)]  # a shell expands no ~ in quotes or .env files


class InferenceSettings(InnerSettings):
    """The settings of the inference service."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="PAGANTIC_INFERENCE_")

    port: int = Field(50052, ge=0, le=65535, description="port to listen on")
    model_path: ExpandedPath = Field("", description="GGUF file; empty is the bundled SmolLM2-135M-Instruct")
    model_name: str = Field("", description="alias of the model; empty takes its file's name")
    models: dict[str, ExpandedPath] = Field(
        default_factory=dict, description="more models, a JSON object of alias to GGUF file; loaded when first used"
    )
    embedding_model: Literal["bundled", "none"] = Field(
        BUNDLED, description="all-MiniLM-L6-v2 after all other models, converted when first used; none leaves it out"
    )
    model_sha256: dict[str, Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]] = Field(
        default_factory=dict,
        description="expected SHA-256 of models' files, a JSON object of alias to hexadecimal digits",
    )
    memory_limit_mib: int = Field(
        0, ge=0, description="memory of all loaded models; the least recently used one is unloaded; 0 is no limit"
    )
    min_residence_s: float = Field(
        5.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="least time that a model stays loaded",
    )
    context_tokens: int = Field(4096, ge=64, description="context window; at most what the model was trained on")
    kv_tokens: int = Field(0, ge=0, description="cells of the KV cache; 0 is twice the context window")
    max_idle_tokens: int = Field(0, ge=0, description="KV cells kept for repeated prompts; they slow every step")
    parked_mib: int = Field(512, ge=0, description="host memory for the KV cells of repeated prompts")
    shared_prompt_folder: ExpandedPath = Field(
        "",
        description="folder of texts; tenants share the KV cells of system messages that begin with one; empty is none",
    )
    max_running: int = Field(16, ge=1, le=128, description="requests and candidates decoded at the same time")
    drafting: bool = Field(True, description="guess tokens that repeat the prompt, while that pays (prompt lookup)")
    tuning: bool = Field(
        True, description="measure the best value of each auto setting in idle moments, and remember it"
    )
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(AUTO, description="threads that decode")
    spin_count: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        AUTO, description="how long idle threads spin before they sleep (300); long is slow beside busy processes"
    )
    flash_attention: bool | Literal["auto"] = Field(
        AUTO, description="on a CPU it helps many short sequences and slows long ones"
    )
    step_tokens: Annotated[int, Field(ge=8)] | Literal["auto"] = Field(
        AUTO, description="tokens of one step; cancellation and new requests take effect between steps"
    )
    gpu_layers: int = Field(0, ge=-1, description="layers kept on the GPU; -1 is all")
    queue_capacity: int = Field(64, ge=0, description="requests that may wait; one more is INFERENCE_OVERLOADED")
    tenant_weights: dict[str, Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description="shares of tenants when not all requests fit, a JSON object of tenant to weight; 1 unless set",
    )
    max_priority: int = Field(0, ge=0, le=10, description="highest priority of a request; callers may lower theirs")
    max_candidates: int = Field(64, ge=1, description="most candidates of one request")
    constraint_workers: int = Field(1, ge=1, le=64, description="processes that try constraints first")
    max_constraint_s: float = Field(
        1.5, ge=0.05, le=600, allow_inf_nan=False, description="longest time that building a constraint takes"
    )
    constraint_cache_mib: int = Field(512, ge=64, description="memory for cached constraints, in MiB")
    stream_interval_ms: int = Field(
        50,
        ge=0,
        description="least time between two messages of a stream; the first text of an answer is never held back",
    )
    step_timeout_s: float = Field(
        120.0, gt=0, description="a step that takes longer fails the service's health and ends its streams"
    )
    self_check: bool = Field(
        True, description="at the first start, decode in a child process too, to find a CPU that the build dies on"
    )
