"""The settings of the orchestrator, read from PAGANTIC_ORCHESTRATOR_<NAME>."""

from __future__ import annotations

import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import limits
from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from pagantic_common.domain.calls.principal import MAX_SUBJECT
from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.settings import Auth, CallerSettings, Tls, state_folder
from services.orchestrator.app.running.environment import ConcurrentTurns
from services.orchestrator.core.conversation.memory import Eviction
from services.orchestrator.core.cost import Prices, parse_prices
from services.orchestrator.core.plans.planning import Planner
from services.orchestrator.core.tools.policy import ToolPolicy, parse_policy
from services.orchestrator.ports.identity import CertificateCaller, Issuer, check_issuers
from services.orchestrator.ports.journal import MAX_STATE_BYTES, Durability


def _check_rate(text: str) -> str:
    """Return a rate, or "" for no limit. Raises ValueError if the rate is invalid."""
    try:
        rates = limits.parse_many(text) if text else []
    except ValueError:
        rates = [limits.RateLimitItemPerSecond(0)]
    if len(rates) > 1 or any(rate.amount < 1 for rate in rates):
        raise ValueError("write one number of calls and a time, as in 600/minute")
    return text


_ENVELOPE_BYTES = 64 * 1024  # maximum size of an execution or an event, excluding the response


class Routing(StrEnum):
    """The method of choosing the inference service's replica for an inference."""

    ESTIMATE = "estimate"
    ROUND_ROBIN = "round_robin"


CollectionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class OrchestratorSettings(CallerSettings):
    """The settings of the orchestrator."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="PAGANTIC_ORCHESTRATOR_")
    known_auth: ClassVar[tuple[Auth, ...]] = (Auth.LOCAL, Auth.NONE, Auth.KEYS)

    admin_key_file: Path | None = Field(
        None,
        validate_default=True,
        description="file of the operator's own API keys, one for each line; AUTH=keys needs it",
    )
    signing_key_file: Path | None = Field(
        None,
        validate_default=True,
        description="PEM file of the private key that signs tenant tokens for the other services; AUTH=keys needs it",
    )
    oidc_issuers: dict[str, Issuer] = Field(
        default_factory=dict,
        description="identity providers whose tokens are taken too, a JSON object of URL to what their tokens mean",
    )
    certificate_callers: dict[str, CertificateCaller] = Field(
        default_factory=dict,
        description="callers that their certificates name, a JSON object of SPIFFE id to tenant and scopes",
    )
    client_ca_file: Path | None = Field(
        None, description="PEM file of authorities of callers' certificates, besides TLS_CA_FILE"
    )
    policy_file: Path | None = Field(
        None, description="file of Cedar policies: the models, tools and collections that tenants may use"
    )
    guards_file: Path | None = Field(
        None, description="file of guards, which block or redact what must not pass: JSON; unset is none"
    )
    experiments_file: Path | None = Field(
        None, description="file of experiments, whose variants get shares of the requests: JSON; unset is none"
    )
    call_rate_of_tenant: Annotated[str, AfterValidator(_check_rate)] = Field(
        "", description="most calls of a tenant in a time, as in 600/minute; empty is any number"
    )
    call_rate_of_key: Annotated[str, AfterValidator(_check_rate)] = Field(
        "", description="most calls of one key in a time, as in 60/minute; empty is any number"
    )
    audit: bool | None = Field(None, description="record who asked for what; by default only with AUTH=keys")
    audit_key_file: Path | None = Field(
        None, description="file with a secret that keys the hashes of the audit; unset is no key"
    )
    audit_retention_s: float = Field(
        400 * 86_400.0, gt=0, allow_inf_nan=False, description="how long records of the audit are kept"
    )
    port: int = Field(50051, ge=0, le=65535, description="port to listen on")
    inference_routing: Routing = Field(
        Routing.ESTIMATE,
        description="who gets an inference: estimate, the replica that is likely to answer first, or round_robin",
    )
    constraint_address: str = Field("127.0.0.1:50053", description="address of the constraint service")
    context_address: str = Field("127.0.0.1:50054", description="address of the context service")
    rerank_address: str = Field("127.0.0.1:50055", description="address of the rerank service")
    tools_address: str = Field("127.0.0.1:50056", description="address of the tools service")
    journal_url: SecretStr = Field(
        default_factory=lambda: SecretStr(f"sqlite:///{state_folder() / 'orchestrator' / 'journal.sqlite3'}"),
        description="database of executions, events and conversations: sqlite:///PATH or postgresql://…",
    )
    journal_url_file: Path | None = Field(
        None, description="file with that URL in its first line, as for a password; it wins over JOURNAL_URL"
    )
    journal_wait_s: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="how long a start waits for a PostgreSQL that does not answer; 0 is for ever",
    )
    journal_key_file: Path | None = Field(
        None, description="file of keys that encrypt what the journal keeps of requests and answers; unset is none"
    )
    journal_key_strict: bool = Field(
        False,
        description="refuse content of the journal that is not encrypted for its row, as that of earlier versions",
    )
    instance_id: str = Field(
        "",
        max_length=200,
        description="name among the orchestrators of one database, the same after a restart; empty is host and port",
    )
    durability: Durability = Field(
        Durability.POWER, description="what a stored event survives: the end of the process, or a power cut too"
    )
    resume_plans: bool = Field(True, description="whether interrupted plans are taken up without being asked")
    concurrent_turns: ConcurrentTurns = Field(
        ConcurrentTurns.WAIT, description="a turn that comes while another of its session runs: wait or abort"
    )
    retention_s: float = Field(86_400.0, gt=0, description="how long ended executions are kept")
    session_retention_s: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="how long a conversation is kept that nobody uses; 0 is for ever"
    )
    busy_patience_s: float = Field(
        30.0,
        ge=0,
        le=3600,
        description="how long an inference waits for room in the inference service's queue, within its deadline",
    )
    prompt_folder: Path | None = Field(
        None, description="folder of prompt templates, <name>.txt or <name>.md; empty is none"
    )
    calibration_folder: Path | None = Field(
        None, description="folder of calibrations of decisions, <name>.json; empty is none"
    )
    memory_max_messages: int = Field(
        0, ge=0, description="most stored messages that a model sees of a conversation; 0 is any number"
    )
    memory_max_tokens: int = Field(
        0, ge=0, description="most tokens of them; 0 is what the context window leaves, which is always a limit too"
    )
    memory_eviction: Eviction = Field(
        Eviction.FIFO, description="what happens to the oldest messages: fifo, none or summarize"
    )
    prices: Annotated[dict[str, Prices], NoDecode] = Field(
        default_factory=dict,
        description='USD per million tokens as JSON: {"model": {"prompt": 1, "cached_prompt": 0.1, "output": 4}}',
    )
    tool_policy: Annotated[ToolPolicy, NoDecode] = Field(
        default_factory=ToolPolicy,
        description="allow, ask or deny calls of tools by name, with * for any text, or by safety class, with commas "
        "between: send_*=ask, safety:external=deny",
    )
    max_offered_tool_bytes: int = Field(
        5120,
        ge=0,
        description="bytes of the registered tools that a model is offered when a request names none; of more, those "
        "that fit the words of the request; 0 is any number",
    )
    searched_collections: Annotated[tuple[CollectionName, ...], NoDecode] = Field(
        (),
        description="collections of the caller's tenant that the tool search_documents may search, with commas "
        "between; empty offers no such tool",
    )
    approval_wait_s: float = Field(
        300.0, gt=0, le=30 * 86_400, description="how long a tool call waits for an approval; then it is denied"
    )
    planner: Planner = Field(Planner.STATIC, description="who plans PLAN requests without a plan: static or model")
    max_plan_steps: int = Field(64, ge=1, description="steps of one plan; a longer one is rejected")
    max_step_s: float = Field(0.0, ge=0, allow_inf_nan=False, description="longest time of a plan's step; 0 is any")
    allowed_step_kinds: Annotated[frozenset[str], NoDecode] = Field(
        frozenset(), description="kinds of steps that plans may have, with commas between; empty is all"
    )
    require_linear_plans: bool = Field(False, description="whether the steps of a plan must follow one another")
    step_kinds: Annotated[dict[str, str], NoDecode] = Field(
        default_factory=dict,
        description="kinds of steps that this deployment adds: name=package.module:function, with commas between",
    )
    max_execution_s: float = Field(
        3600.0, gt=0, le=366 * 86_400, description="longest time of an execution, its interruptions included"
    )
    max_request_bytes: int = Field(1024 * 1024, ge=1024, description="largest request taken, as it is encoded")
    max_running_bytes: int = Field(
        16 * 1024 * 1024, ge=1024, description="bytes of the requests that run at once; one more is RESOURCE_EXHAUSTED"
    )
    journal_min_free_bytes: int = Field(
        64 * 1024 * 1024, ge=0, description="least room on the journal's volume; with less it is not ready"
    )
    max_stored_bytes_of_tenant: int = Field(
        0,
        ge=0,
        description="bytes that the journal keeps of one tenant; one more is RESOURCE_EXHAUSTED; 0 is, with AUTH=keys, "
        "as many as are left free",
    )
    max_session_bytes: int = Field(
        64 * 1024 * 1024, ge=1, description="bytes of one conversation; a turn or message more is RESOURCE_EXHAUSTED"
    )
    max_running_of_tenant: int = Field(
        0,
        ge=0,
        description="executions of one tenant that may run at once; 0 is, with AUTH=keys, twice as many as are left "
        "free",
    )
    max_running_bytes_of_tenant: int = Field(
        0,
        ge=0,
        description="of MAX_RUNNING_BYTES, those of one tenant; 0 is, with AUTH=keys, twice as many as are left free",
    )
    max_running_of_subject: int = Field(
        0, ge=0, description="executions of each named caller within a tenant that may run at once; 0 is any number"
    )
    max_running: int = Field(256, ge=1, description="executions that may run at once; one more is RESOURCE_EXHAUSTED")

    @property
    def max_tenant_bytes(self) -> int | None:
        """Maximum bytes that the journal stores per tenant: 0 for the remaining space, None with a single tenant."""
        if not self.max_stored_bytes_of_tenant and self.auth is not Auth.KEYS:
            return None
        return self.max_stored_bytes_of_tenant

    @property
    def max_received_bytes(self) -> int:
        """The size of the largest message accepted by the port.

        The service itself rejects a slightly larger request, and gRPC rejects a much larger request. The limit leaves
        room for all values of a session in one update.
        """
        return min(self.max_message_bytes, 2 * max(self.max_request_bytes, MAX_STATE_BYTES))

    @property
    def max_response_bytes(self) -> int:
        """The size of the largest response.

        One message contains the response, the data of its execution and, if it is kept, the request. A response may
        always fill half a message. If MAX_REQUEST_BYTES exceeds the other half, GetExecution may have no room for both
        request and response, but Execute and the stream still return the response.
        """
        return max(self.max_message_bytes // 2, self.max_message_bytes - self.max_request_bytes - _ENVELOPE_BYTES)

    @property
    def max_answer_bytes(self) -> int:
        """The maximum size of one inference's output, which is a part of the response."""
        return self.max_message_bytes // 2

    def read_journal_url(self) -> str:
        """Return the URL of the journal's database. Raises InvalidRequest if the file cannot be read."""
        if self.journal_url_file is None:
            return self.journal_url.get_secret_value()
        try:
            with self.journal_url_file.open(encoding="utf-8") as file:
                return file.readline().strip()
        except (OSError, UnicodeDecodeError):
            raise InvalidRequest(f"JOURNAL_URL_FILE {str(self.journal_url_file)!r} cannot be read") from None

    @field_validator("admin_key_file")
    @classmethod
    def _check_admin_key_file(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is None and info.data.get("auth") is Auth.KEYS:
            raise ValueError("AUTH=keys needs a first key: put the output of `pagantic keys new` into this file")
        return path

    @field_validator("signing_key_file")
    @classmethod
    def _check_signing_key_file(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is None and info.data.get("auth") is Auth.KEYS:
            raise ValueError("AUTH=keys needs an Ed25519 key, so that the other services can tell tenants apart")
        return path

    @field_validator("oidc_issuers")
    @classmethod
    def _check_oidc_issuers(cls, issuers: dict[str, Issuer], info: ValidationInfo) -> dict[str, Issuer]:
        if issuers and info.data.get("auth") is not Auth.KEYS:
            raise ValueError("it needs AUTH=keys: otherwise nobody is asked for a token")
        check_issuers(issuers)
        return issuers

    @field_validator("certificate_callers")
    @classmethod
    def _check_certificate_callers(
        cls, callers: dict[str, CertificateCaller], info: ValidationInfo
    ) -> dict[str, CertificateCaller]:
        if callers and (info.data.get("auth") is not Auth.KEYS or info.data.get("tls") is not Tls.FILES):
            raise ValueError("it needs AUTH=keys and TLS=files: otherwise nobody is asked for a certificate")
        if wrong := next((caller for caller in callers if not caller.startswith("spiffe://")), None):
            raise ValueError(f"{wrong!r} is not a SPIFFE id, spiffe://...")
        if any(len(caller) > MAX_SUBJECT for caller in callers):
            raise ValueError(f"a SPIFFE id may have {MAX_SUBJECT} characters here")
        return callers

    @field_validator("client_ca_file")
    @classmethod
    def _check_client_ca_file(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is not None and not info.data.get("certificate_callers"):
            raise ValueError("it needs CERTIFICATE_CALLERS: otherwise nobody is asked for a certificate")
        return path

    @model_validator(mode="after")
    def _check_journal_keys(self) -> Self:
        if self.journal_key_strict and self.journal_key_file is None:
            raise ValueError("JOURNAL_KEY_STRICT needs JOURNAL_KEY_FILE: without it nothing is encrypted")
        return self

    @field_validator("prices", mode="before")
    @classmethod
    def _parse_prices(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return parse_prices(value)

    @field_validator("tool_policy", mode="before")
    @classmethod
    def _parse_tool_policy(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return parse_policy(value)

    @field_validator("allowed_step_kinds", "searched_collections", mode="before")
    @classmethod
    def _parse_list(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))

    @field_validator("step_kinds", mode="before")
    @classmethod
    def _parse_step_kinds(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        pairs = [part.strip().partition("=") for part in value.split(",") if part.strip()]
        if wrong := next((name for name, _, path in pairs if not name or ":" not in path), None):
            raise ValueError(f"{wrong!r} must be name=package.module:function")
        return {name: path for name, _, path in pairs}

    @field_validator(
        "prompt_folder",
        "calibration_folder",
        "admin_key_file",
        "signing_key_file",
        "journal_url_file",
        "client_ca_file",
        "audit_key_file",
        "journal_key_file",
        "policy_file",
        "guards_file",
        "experiments_file",
        mode="before",
    )
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return value or None

    @property
    def records_audit(self) -> bool:
        """Whether calls are recorded in the audit log."""
        if self.audit is None:
            return self.auth is Auth.KEYS
        return self.audit

    @property
    def requires_certificate(self) -> bool:
        """Whether callers must present a certificate if connections use TLS from files."""
        return bool(self.certificate_callers)

    @property
    def caller_ca_file(self) -> Path | None:
        """The file of additional certificate authorities for callers; None to accept only those of the services."""
        return self.client_ca_file

    @property
    def owner(self) -> str:
        """The name of this orchestrator among the orchestrators that share its database."""
        return self.instance_id or f"{socket.gethostname()}:{self.port}"
