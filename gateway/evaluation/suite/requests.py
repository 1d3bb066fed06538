"""Builds the requests of cases.

A case's settings override the suite's settings, and the command's settings override both.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from google.protobuf import json_format

from gateway.evaluation.suite.model import Case, Suite, SuiteError
from gateway.written.errors import WrittenError
from gateway.written.request_fields import expand, merged
from pagantic.common.v1 import message_pb2
from pagantic.orchestrator.v1 import execution_pb2
from pagantic_common.client.hints import set_variant
from pagantic_common.codec.messages import duration_to_proto
from pagantic_common.domain.defaults import REQUEST_TIMEOUT_S

OWN_METADATA = "eval."  # Prefix of the metadata keys that an evaluation sets.
_SET_BY_THE_EVALUATION = ("request_id", "session_id", "trace_id", "background", "keep_request")


@dataclass(frozen=True, slots=True)
class Settings:
    """The command's settings for all cases.

    `model`, `seed` and `variant` override the settings of cases; `timeout_s` does not. `variant` is EXPERIMENT=VARIANT,
    or `none` for no experiment.
    """

    model: str = ""
    seed: int | None = None
    timeout_s: float = REQUEST_TIMEOUT_S
    variant: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the settings as JSON. Without a variant, the form is the same as in earlier versions."""
        written = asdict(self)
        if not self.variant:
            del written["variant"]
        return written


def request_of(suite: Suite, case: Case, settings: Settings, evaluation_id: str) -> execution_pb2.SystemRequest:
    """Return the request of a case under a reproducible id. Raises SuiteError if the request is invalid.

    The request is kept and runs in the background, so that work that has begun is not lost if the command ends.
    """
    try:
        fields = expand(merged(suite.request, case.request))
    except WrittenError as error:
        raise SuiteError(f"case {case.name!r}: request.{error}") from None
    for name in _SET_BY_THE_EVALUATION:
        if name in fields:
            raise SuiteError(f"case {case.name!r}: the evaluation sets {name!r} itself")
    request = execution_pb2.SystemRequest(mode=execution_pb2.MODE_CHAT)
    try:
        json_format.ParseDict(fields, request)
    except json_format.ParseError as error:
        raise SuiteError(
            f"case {case.name!r}: the request is no SystemRequest: {' '.join(str(error).split())}"
        ) from None
    if not request.messages and not request.text_prompt:
        request.messages.extend(_messages_of(case))
    _apply(settings, request)
    request.request_id = f"eval.{evaluation_id}.{case.name}"
    request.background = request.mode != execution_pb2.MODE_DECIDE
    request.keep_request = True
    request.metadata[f"{OWN_METADATA}id"] = evaluation_id
    request.metadata[f"{OWN_METADATA}case"] = case.name
    return request


def _apply(settings: Settings, request: execution_pb2.SystemRequest) -> None:
    if settings.model:
        request.hints.model = settings.model
    if settings.seed is not None and request.mode != execution_pb2.MODE_DECIDE:
        request.hints.seed = settings.seed
    if settings.variant:
        try:
            set_variant(request, settings.variant)
        except ValueError as error:
            raise SuiteError(f"--{error}") from None
    if not request.hints.HasField("timeout"):
        request.hints.timeout.CopyFrom(duration_to_proto(settings.timeout_s))


def _messages_of(case: Case) -> list[message_pb2.Message]:
    if isinstance(case.input, str):
        return [message_pb2.Message(role=message_pb2.ROLE_USER, content=case.input)]
    return [
        message_pb2.Message(role=message_pb2.Role.Value(f"ROLE_{message.role.upper()}"), content=message.content)
        for message in case.input
    ]
