"""`pagantic eval`: evaluates suites of cases and compares the results. Its packages are loaded only when it runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from gateway.cli import options
from gateway.cli.failures import EXIT_USAGE
from gateway.cli.output import reporting_errors
from gateway.cli.tree import PlainCommand

if TYPE_CHECKING:
    from gateway.cli.evaluation.reports import Shown

PACKAGES = ("jinja2", "jsonschema_rs", "numpy", "re2", "yaml")
DEFAULT = "run"
FOLDER = Path("evaluations")
MAX_PARALLEL = 64

Folder = Annotated[Path, typer.Option(metavar="DIR", help="Folder of results files.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a page of HTML.")]
MinScore = Annotated[
    list[str] | None,
    typer.Option(metavar="[NAME=]X", help="Fail below this mean, of one score or of each from 0 to 1; repeatable."),
]
MaxRegression = Annotated[
    list[str] | None,
    typer.Option(metavar="[NAME=]X", help="Fail if it is worse than the baseline by more than this; repeatable."),
]
Variant = Annotated[
    str,
    typer.Option(
        metavar="EXPERIMENT=VARIANT",
        help="Give every case this variant of an experiment; `none` keeps them out of experiments.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
Stored = Annotated[str, typer.Argument(metavar="NAME", help="Name of an evaluation, or its results file.")]


class DefaultGroup(TyperGroup):
    """A command group with a default command: `eval SUITE` means `eval run SUITE`."""

    default_command = DEFAULT

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command before arguments that do not name a command."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete the options of the default command along with the group's own words."""
        return super().shell_complete(ctx, incomplete) + self.commands[self.default_command].shell_complete(
            ctx, incomplete
        )


evaluations = typer.Typer(
    cls=DefaultGroup,
    no_args_is_help=True,
    help="Evaluate a suite of cases. `pagantic eval SUITE` is `pagantic eval run SUITE`.",
)


@evaluations.command(DEFAULT, cls=PlainCommand)
def run(
    suite: Annotated[
        Path | None,
        typer.Argument(metavar="SUITE", help="A suite as YAML or JSON, or cases as JSON Lines.", show_default=False),
    ] = None,
    *,
    from_executions: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILTER",
            help="Make cases of recorded executions: all, session=ID, or KEY=VALUE of their metadata; repeatable.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Most executions to take.")] = 100,
    scorer: Annotated[
        list[str] | None,
        typer.Option(metavar="SCORER", help="Add a scorer to the suite, as `exact` or as YAML; repeatable."),
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the evaluation; else it follows from what runs.")
    ] = "",
    folder: Folder = FOLDER,
    parallel: Annotated[int, typer.Option(metavar="N", min=1, max=MAX_PARALLEL, help="Cases at once.")] = 4,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also send cases again that failed, or lack a score.")
    ] = False,
    model: options.Model = "",
    seed: options.Seed = None,
    variant: Variant = "",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.001, help="Longest time for one case.", show_default=True)
    ] = options.TIMEOUT_S,
    baseline: Annotated[
        str, typer.Option(metavar="NAME", help="Compare with this evaluation, and fail if worse.")
    ] = "",
    min_score: MinScore = None,
    max_regression: MaxRegression = None,
    html: Html = None,
    as_json: AsJson = False,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Evaluate a suite; the same command continues it."""
    _check_packages()
    from gateway.cli.evaluation import asking, reports, work
    from gateway.evaluation.suite import requests

    with reporting_errors():
        evaluation_request = asking.Asked(
            suite=suite,
            filters=from_executions or (),
            limit=limit,
            scorers=scorer or (),
            name=name,
            folder=folder,
            parallel=parallel,
            retries_failed=retry_failed,
            settings=requests.Settings(model=model, seed=seed, timeout_s=timeout, variant=variant),
            address=address,
        )
        shown = _shown(html, as_json=as_json, min_score=min_score, max_regression=max_regression)
        base = reports.find(folder, baseline) if baseline else None
        reports.report(
            work.evaluate(evaluation_request), shown, base, is_gated=bool(baseline or min_score or max_regression)
        )


@evaluations.command(cls=PlainCommand)
def compare(
    baseline: Stored,
    other: Stored,
    *,
    gate: Annotated[bool, typer.Option("--gate", help="Fail if the second is significantly worse.")] = False,
    min_score: MinScore = None,
    max_regression: MaxRegression = None,
    folder: Folder = FOLDER,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Compare two evaluations, case by case."""
    _check_packages()
    from gateway.cli.evaluation import reports

    with reporting_errors():
        shown = _shown(html, as_json=as_json, min_score=min_score, max_regression=max_regression)
        is_gated = bool(gate or min_score or max_regression)
        reports.report(reports.find(folder, other), shown, reports.find(folder, baseline), is_gated=is_gated)


@evaluations.command(cls=PlainCommand)
def show(name: Stored, *, folder: Folder = FOLDER, html: Html = None, as_json: AsJson = False) -> None:
    """Show the results of an evaluation."""
    _check_packages()
    from gateway.cli.evaluation import reports

    with reporting_errors():
        reports.report(reports.find(folder, name), _shown(html, as_json=as_json), None, is_gated=False)


def _shown(
    html: Path | None,
    *,
    as_json: bool,
    min_score: list[str] | None = None,
    max_regression: list[str] | None = None,
) -> Shown:
    from gateway.cli.evaluation import reports

    return reports.Shown(
        as_json=as_json,
        html=html,
        limits=reports.limits_of(min_score or (), max_regression or ()),
    )


def _check_packages() -> None:
    if any(importlib.util.find_spec(name) is None for name in PACKAGES):
        typer.echo(
            "this installation lacks the packages of evaluations: `pip install 'pagantic[eval]'` brings them", err=True
        )
        raise typer.Exit(EXIT_USAGE)
