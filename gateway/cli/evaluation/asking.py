"""Reads the request of an evaluation command: its suite, the recorded executions to evaluate, and its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.cli.output import UsageError, note
from gateway.evaluation.suite.files import read_suite
from gateway.evaluation.suite.model import Suite, hash_of
from gateway.evaluation.suite.reading import suite_of
from gateway.evaluation.suite.recorded import read_executions
from gateway.evaluation.suite.requests import Settings
from gateway.written.plain_yaml import parse_yaml
from pagantic_common.client import AsyncClient
from pagantic_common.client.descriptions import count_of
from pagantic_common.domain.ids import is_id

ALL = "all"


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of an evaluation command, which determine its suite and name."""

    suite: Path | None
    filters: Sequence[str]
    limit: int
    scorers: Sequence[str]
    name: str
    folder: Path
    parallel: int
    retries_failed: bool
    settings: Settings
    address: str

    def written(self) -> dict[str, Any]:
        """Return the command's suite as JSON values, without the cases taken from executions."""
        written: dict[str, Any] = {"name": "executions"}
        if self.suite is not None:
            written = read_suite(self.suite)
        elif not self.filters:
            raise UsageError("name a SUITE, or --from-executions")
        if self.filters and "cases" in written:
            raise UsageError("cases come from the suite or from executions, not from both")
        if self.scorers:
            own = written.get("scorers", [])
            if not isinstance(own, list):
                raise UsageError("the scorers of the suite are no list")
            written["scorers"] = [*own, *map(parse_yaml, self.scorers)]
        elif self.filters:
            written.setdefault("scorers", ["exact"])
        return written

    def name_for(self, written: dict[str, Any], suite: Suite | None) -> str:
        """Return the given name, or a name derived from the request, so that the same command finds its results."""
        of_suite = hash_of([written, list(self.filters), self.limit])
        if suite is not None:
            of_suite = suite.hash
        name = self.name or f"{written['name']}-{hash_of([of_suite, self.settings.as_json()])[:8]}"
        if not is_id(name):
            raise UsageError(f"--name {name[:140]!r}: use letters, digits and . _ : - only, at most 128")
        return name

    async def recorded(self, client: AsyncClient, written: dict[str, Any]) -> Suite:
        """Return the suite with the cases of the matching executions. Raises UsageError if no execution matches."""
        metadata, session = self.selection()
        recorded = await read_executions(client, metadata, session, self.limit)
        if recorded.skipped:
            note(
                f"{count_of(recorded.skipped, 'execution')} left out: the request was not kept, or belongs to a "
                "conversation or an evaluation"
            )
        if not recorded.cases:
            raise UsageError("no recorded execution fits: send requests with keep_request, or widen the filter")
        return suite_of({**written, "cases": recorded.cases})

    def selection(self) -> tuple[dict[str, str], str]:
        """Return the requested metadata and session. Raises UsageError if a filter is invalid."""
        metadata = {}
        session = ""
        for text in self.filters:
            name, sign, value = text.partition("=")
            if text == ALL:
                continue
            if not sign or not name:
                raise UsageError(f"--from-executions {text!r}: use {ALL}, session=ID, or KEY=VALUE of the metadata")
            if name == "session":
                session = value
            else:
                metadata[name] = value
        return metadata, session
