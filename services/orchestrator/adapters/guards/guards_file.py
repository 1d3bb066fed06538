"""Reads the guards file: a JSON object that lists the guards in order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.text.json_text import dump_json
from pagantic_common.guards.plugin import GuardStage
from pagantic_common.storage.json_file import read_json_file
from services.orchestrator.core.guards.rules import GuardAction, GuardRule, OnFailure

GUARDS_FILE: Final = "GUARDS_FILE"
MAX_GUARDS: Final = 32
MAX_WORKERS: Final = 64

_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class _Guard(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False)

    plugin: _Name
    stages: list[GuardStage] = Field(min_length=1)
    name: _Name = ""
    action: GuardAction = GuardAction.BLOCK
    on_failure: OnFailure = OnFailure.CLOSED
    timeout_s: float = Field(5.0, gt=0, le=60)
    tenants: list[str] = Field(default_factory=list)
    options: dict[str, Any] = Field(default_factory=dict)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    guards: list[_Guard] = Field(min_length=1, max_length=MAX_GUARDS)
    workers: int = Field(2, ge=1, le=MAX_WORKERS)
    folders: list[Path] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GuardsFile:
    """The guards in order, before their traits are known, and their worker processes.

    `workers` is the number of processes. They may read only the files in `folders` and Python's packages.
    """

    rules: tuple[GuardRule, ...]
    workers: int
    folders: tuple[Path, ...] = ()


def read_guards_file(path: Path) -> GuardsFile:
    """Read the file. Raises InvalidRequest with the error and its location."""
    where = f"{GUARDS_FILE} {str(path)!r}"
    content = read_json_file(path, _File, GUARDS_FILE)
    rules = tuple(map(_rule, content.guards))
    names = [rule.name for rule in rules]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"{where} has two guards with the name {twice!r}: give each a name of its own")
    if wrong := next((folder for folder in content.folders if not (folder.is_absolute() and folder.is_dir())), None):
        raise InvalidRequest(f"{where} names {str(wrong)!r} in folders: it must be the whole path of a folder")
    return GuardsFile(rules, content.workers, tuple(content.folders))


def _rule(guard: _Guard) -> GuardRule:
    return GuardRule(
        name=guard.name or guard.plugin,
        plugin=guard.plugin,
        stages=frozenset(guard.stages),
        action=guard.action,
        on_failure=guard.on_failure,
        tenants=frozenset(guard.tenants),
        timeout_s=guard.timeout_s,
        options_json=dump_json(guard.options),
    )
