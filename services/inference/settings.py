"""Settings of the inference service, read as PAGANTIC_INFERENCE_<NAME>."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import SettingsConfigDict

from pagantic_common.models.resolving import NO_MODEL, model_file
from pagantic_common.settings import InnerSettings
from pagantic_common.storage.settings_names import PREFIX
from services.inference.core.remote.requests import OWN_FIELDS
from services.inference.core.tuning import NAMES

AUTO: Literal["auto"] = "auto"
BUNDLED: Literal["bundled"] = "bundled"
MIB = 1024 * 1024  # number of bytes in the unit of settings that end with _MIB
ExpandedPath = Annotated[str, AfterValidator(os.path.expanduser)]  # shells do not expand a ~ in quotes or in .env files
ModelFile = Annotated[str, AfterValidator(model_file)]  # a path, or the name of a pulled model
Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]
EntryT = TypeVar("EntryT", bound=BaseModel)


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it must begin with http:// or https:// and name a host")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("it must have no user, query or fragment: api_key_env or api_key_file take a secret")
    return url


def _own_model_file(given: str) -> str:
    return given if given == NO_MODEL else model_file(given)


class RemoteSettings(BaseModel):
    """The settings of a model of another engine, reached over HTTP."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, AfterValidator(_check_url)] = Field(description="address of the API; OpenAI's ends with /v1")
    model: str = Field(min_length=1, description="name of the model there")
    context_window: int = Field(ge=64, le=2**31 - 1, description="tokens of a prompt and its output together")
    serves: Literal["text", "embeddings"] = Field("text", description="what the model makes")
    api_key_env: str = Field("", description="environment variable that holds the key; empty is none")
    api_key_file: ExpandedPath = Field("", description="file that holds the key in its first line; empty is none")
    ca_file: ExpandedPath = Field("", description="PEM file of the authorities of its certificate; empty: the system's")
    max_concurrent: int = Field(16, ge=1, le=4096, description="requests that it gets at once")
    queue_capacity: int = Field(64, ge=0, le=65536, description="requests that may wait; one more is refused")
    connect_timeout_s: Seconds = Field(5.0, description="longest time until a connection is open")
    timeout_s: Seconds = Field(120.0, description="longest silence of the engine")
    max_answer_bytes: int = Field(32 * 1024 * 1024, ge=1024, le=2**31 - 1, description="largest answer")
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="field that limits the output"
    )
    takes_images: bool = Field(False, description="whether the model takes images, which it gets as data URLs")
    extra_body: dict[str, Any] = Field(default_factory=dict, description="fields of every request; null leaves one out")
    allowed_options: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(
        (), max_length=64, description="fields that a request may set by its hints.options_json"
    )

    @model_validator(mode="after")
    def _check_key(self) -> RemoteSettings:
        if self.api_key_env and self.api_key_file:
            raise ValueError("api_key_env and api_key_file are both set: keep one of them")
        if self.api_key_env.upper().startswith(PREFIX):
            raise ValueError(f"api_key_env is {self.api_key_env!r}: variables with {PREFIX} are settings, rename it")
        return self

    @model_validator(mode="after")
    def _check_images(self) -> RemoteSettings:
        if self.takes_images and self.serves != "text":
            raise ValueError("takes_images is set: only a model that serves text takes images")
        return self

    @model_validator(mode="after")
    def _check_options(self) -> RemoteSettings:
        if self.allowed_options and self.serves != "text":
            raise ValueError("allowed_options is set: only a model that serves text gets options of requests")
        if own := sorted(OWN_FIELDS & set(self.allowed_options)):
            raise ValueError(f"allowed_options has {own[0]!r}, which requests set by a field of their own: delete it")
        if both := sorted(self.extra_body.keys() & set(self.allowed_options)):
            raise ValueError(f"{both[0]!r} is in extra_body and in allowed_options: keep it in one of them")
        return self


class RouteSettings(BaseModel):
    """An alias for several models. The first model with output answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: tuple[str, ...] = Field(min_length=1, max_length=16, description="aliases, in the order of asking")
    hedge_after_ms: int | None = Field(
        None, ge=0, le=3_600_000, description="silence after which the next one is asked as well; null: after a failure"
    )


def _entries_of(cls: type[EntryT]) -> BeforeValidator:
    """Return a validator for a JSON object of aliases. Its errors name the alias and field of an invalid value."""

    def parse(given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {alias: _entry(cls, alias, value) for alias, value in given.items()}

    return BeforeValidator(parse)


def _entry(cls: type[EntryT], alias: str, value: Any) -> EntryT:
    if not alias:
        raise ValueError("an alias is empty")
    try:
        return cls.model_validate(value)
    except ValidationError as error:
        (problem, *_) = error.errors(include_url=False, include_input=False)
        place = ".".join(map(str, (alias, *problem["loc"])))
        reason = problem.get("ctx", {}).get("error") or problem["msg"].lower()
        raise ValueError(f"{place}: {reason}") from None


class InferenceSettings(InnerSettings):
    """The settings of the inference service."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="PAGANTIC_INFERENCE_")

    port: int = Field(50052, ge=0, le=65535, description="port to listen on")
    model_path: Annotated[str, AfterValidator(_own_model_file)] = Field(
        "",
        description="GGUF file, or name of a pulled model; empty is the bundled SmolLM2-135M-Instruct, none is no "
        "such model",
    )
    model_name: str = Field("", description="alias of the model; empty takes its file's name")
    weights: Literal["auto", "file", "q8_0"] = Field(
        AUTO,
        description="weights of that model: as its file has them, or converted once to 8 bits, which CPUs may compute "
        "faster; auto converts the bundled model on a CPU, if the engine does not use AMX, and no other",
    )
    models: dict[str, ModelFile] = Field(
        default_factory=dict,
        description="more models, a JSON object of alias to GGUF file or pulled model's name; loaded when first used",
    )
    projector_path: ExpandedPath = Field(
        "", description="GGUF file of the image encoder (mmproj) of MODEL_PATH's model; empty: it takes no images"
    )
    default_model: str = Field("", description="alias of the default model; empty is the model of MODEL_PATH")
    remotes: Annotated[dict[str, RemoteSettings], _entries_of(RemoteSettings)] = Field(
        default_factory=dict, description="models of other engines, a JSON object of alias to url, model and limits"
    )
    routes: Annotated[dict[str, RouteSettings], _entries_of(RouteSettings)] = Field(
        default_factory=dict,
        description="aliases of several models, a JSON object of alias to models and hedge_after_ms",
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
    kv_tokens: int = Field(
        0,
        ge=0,
        le=2**31 - 1,
        description="cells of the KV cache, at least the context window; 0 is twice that window",
    )
    cache_type: Literal["f16", "q8_0"] = Field(
        "f16",
        description="numbers in the KV cache: of 16 bits, or of 8, which take less memory and time in long contexts; "
        "values have 8 only with flash attention",
    )
    max_idle_tokens: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        AUTO, description="KV cells kept for repeated prompts; they slow every step; auto is 0 on a CPU"
    )
    parked_mib: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        AUTO, description="host memory for the KV cells of repeated prompts; auto is 512 on a CPU, and 0 on a GPU"
    )
    prefix_folder: ExpandedPath = Field(
        "", description="folder for KV cells of repeated prompts, which replicas share; empty is none"
    )
    prefix_folder_mib: int = Field(4096, ge=1, description="size of that folder; the least recently used cells go")
    shared_prompt_folder: ExpandedPath = Field(
        "",
        description="folder of texts; tenants share the KV cells of system messages that begin with one; empty is none",
    )
    max_running: int = Field(16, ge=1, le=128, description="requests and candidates decoded at the same time")
    drafting: bool = Field(
        True, description="guess tokens while that pays: those that repeat the prompt, and by DRAFT_MODEL_PATH"
    )
    draft_model_path: ModelFile = Field(
        "",
        description="GGUF file, or name of a pulled model, with the same tokens and fewer weights, which drafts for "
        "MODEL_PATH; empty is none",
    )
    tuning: bool = Field(
        True, description="measure the best value of each auto setting in idle moments, and remember it"
    )
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(AUTO, description="threads that decode")
    spin_count: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        AUTO, description="rounds that idle threads spin before they sleep; auto follows the load of other processes"
    )
    flash_attention: bool | Literal["auto"] = Field(
        AUTO, description="on a CPU it helps many short sequences and slows those that share much; follows the load"
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
    constraint_cache_mib: int = Field(512, ge=64, description="memory for cached constraints, in MiB")
    step_timeout_s: float = Field(
        120.0, gt=0, description="a step that takes longer fails the service's health and ends its streams"
    )
    vllm_protocol: bool = Field(
        False, description="serve the default model to gateways for vLLM too, such as SMG: vllm.grpc.engine.VllmEngine"
    )
    vllm_tokenizer_folder: ExpandedPath = Field(
        "", description="folder with the default model's tokenizer.json, which such gateways get; empty is none"
    )
    vllm_kv_events: bool = Field(
        False, description="tell such gateways what the cache has, which shows a caller the tokens of its tenant"
    )
    self_check: bool = Field(
        True, description="at the first start, decode in a child process too, to find a CPU that the build dies on"
    )

    @property
    def has_own_model(self) -> bool:
        """Whether the service loads a model when it starts: the model of MODEL_PATH or the bundled model."""
        return self.model_path != NO_MODEL

    def given_tuning(self) -> dict[str, object]:
        """Return the tuning settings that are not automatic."""
        return {name: value for name in NAMES if (value := getattr(self, name)) != AUTO}

    @model_validator(mode="after")
    def _check_projector(self) -> InferenceSettings:
        if self.projector_path and not self.has_own_model:
            raise ValueError("PROJECTOR_PATH is set and MODEL_PATH is none: it belongs to the model of MODEL_PATH")
        return self

    @model_validator(mode="after")
    def _check_prefixes(self) -> InferenceSettings:
        if self.prefix_folder and not self.parked_mib:
            raise ValueError("PREFIX_FOLDER is set and PARKED_MIB is 0: what is read from it needs that memory")
        return self

    @model_validator(mode="after")
    def _check_drafts(self) -> InferenceSettings:
        if self.draft_model_path and not self.drafting:
            raise ValueError("DRAFT_MODEL_PATH is set and DRAFTING is false: leave one of them out")
        if self.draft_model_path and not self.has_own_model:
            raise ValueError("DRAFT_MODEL_PATH is set and MODEL_PATH is none: there is no model to draft for")
        return self

    @model_validator(mode="after")
    def _check_aliases(self) -> InferenceSettings:
        used: set[str] = set()
        for aliases in (self.models, self.remotes, self.routes):
            if twice := sorted(used & set(aliases)):
                raise ValueError(f"alias {twice[0]!r} is in two of MODELS, REMOTES and ROUTES: rename one of them")
            used |= set(aliases)
        has_choice = bool(used or self.default_model or self.embedding_model != BUNDLED)
        if not self.has_own_model and has_choice and self.default_model not in used:
            raise ValueError("MODEL_PATH is none: set DEFAULT_MODEL to an alias of MODELS, REMOTES or ROUTES")
        return self
