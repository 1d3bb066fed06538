"""Runs the evaluation of a command, or continues the evaluation of an earlier command."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import typer

from gateway.cli.evaluation.asking import Asked
from gateway.cli.evaluation.reports import results_path
from gateway.cli.failures import EXIT_INTERRUPTED
from gateway.cli.output import UsageError, note, showing_progress
from gateway.evaluation.running.evaluation import Evaluating
from gateway.evaluation.running.results import Header, Result, Results, ResultsError, ResultsFile
from gateway.evaluation.suite.model import Suite, SuiteError
from gateway.evaluation.suite.reading import suite_of
from gateway.evaluation.suite.requests import request_of
from pagantic_common.client import AsyncClient
from pagantic_common.domain.errors import PaganticError


def evaluate(asked: Asked) -> Results:
    """Run or continue an evaluation and return the results.

    Raises UsageError if the request is invalid, or the error that stops the evaluation.
    """
    try:
        written = asked.written()
        suite = None
        if not asked.filters:
            suite = suite_of(written)
        name = asked.name_for(written, suite)
        with ResultsFile(results_path(asked.folder, name)) as file:
            return _Work(asked, name, file).run(written, suite)
    except (SuiteError, ResultsError) as error:
        raise UsageError(str(error)) from None


@dataclass(frozen=True, slots=True)
class _Work:
    asked: Asked
    name: str
    file: ResultsFile

    def run(self, written: dict[str, Any], suite: Suite | None) -> Results:
        """Run the evaluation to its end. After Ctrl-C or an error that stops the evaluation, report how to continue."""
        try:
            return asyncio.run(self._evaluate(written, suite))
        except KeyboardInterrupt:
            self._note_rest("stopped")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except PaganticError:
            self._note_rest("the evaluation cannot continue")
            raise

    async def _evaluate(self, written: dict[str, Any], suite: Suite | None) -> Results:
        results = self.file.results
        if results is not None:
            suite = self._suite_of_before(results.header, suite)
        async with AsyncClient(self.asked.address, timeout_s=self.asked.settings.timeout_s) as client:
            if suite is None:
                suite = await self.asked.recorded(client, written)
            for case in suite.cases:  # Check all cases before the first request is sent.
                request_of(suite, case, self.asked.settings, "check")
            if results is None:
                results = self.file.begin(await self._header(client, suite))
            evaluating = Evaluating(client, suite, self.asked.settings, self.file, self.asked.retries_failed)
            if not evaluating.pending():
                note(f"{self.name!r} has all results: this is its report. For another evaluation, name it with --name")
                return results
            if results.by_case:
                note(f"{self.name!r} continues: {len(results.by_case)} of {len(suite.cases)} cases have results")
            await self._send(evaluating, results)
        note(f"results: {self.file.path}")
        return results

    async def _send(self, evaluating: Evaluating, results: Results) -> None:
        with showing_progress() as progress:

            def on_result(_result: Result) -> None:
                failed = sum(bool(result.error) for result in results.by_case.values())
                progress.show(f"{len(results.by_case)} of {results.case_count} cases, {failed} failed")

            await evaluating.evaluate(results.header.id, parallel=self.asked.parallel, on_result=on_result)

    def _suite_of_before(self, header: Header, suite: Suite | None) -> Suite:
        """Return the suite stored with the results. Raises UsageError if the command requests a different one."""
        of_before = suite_of(header.suite)
        if suite is not None and suite.hash != header.suite_hash:
            raise UsageError(
                f"{str(self.file.path)!r} has results of another suite, or of this one before it was changed: "
                "give this evaluation another --name"
            )
        if header.settings != self.asked.settings.as_json():
            raise UsageError(
                f"{str(self.file.path)!r} has results with other settings, {header.settings}: "
                "give this evaluation another --name"
            )
        return of_before

    async def _header(self, client: AsyncClient, suite: Suite) -> Header:
        models = [model.name for model in await client.list_models()]
        return Header(
            id=uuid.uuid4().hex[:12],
            name=self.name,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            suite=suite.as_json(),
            suite_hash=suite.hash,
            settings=self.asked.settings.as_json(),
            units={label: scorer.unit for label, scorer in suite.all_scorers().items()},
            versions={
                "pagantic": importlib.metadata.version("pagantic"),
                "python": platform.python_version(),
                "models": ", ".join(models),
            },
        )

    def _note_rest(self, what: str) -> None:
        results = self.file.results
        if results is None:
            return
        note(
            f"\n{what}: {len(results.by_case)} of {results.case_count} cases have results in {str(self.file.path)!r}; "
            "the same command continues, and does not repeat them"
        )
