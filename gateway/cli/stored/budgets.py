"""Commands for the budgets of tenants and their callers."""

from __future__ import annotations

import re
from datetime import UTC
from typing import Annotated

import typer

from gateway.cli import options
from gateway.cli.completion import words
from gateway.cli.output import UsageError, note, print_json, reporting_errors, show
from gateway.cli.tree import PlainCommand
from pagantic.orchestrator.v1 import budget_pb2
from pagantic_common.client import Client
from pagantic_common.client.tables import cell, list_table
from pagantic_common.codec.fields import name_of

_PREFIX = "BUDGET_PERIOD_"
_PERIODS = [name.removeprefix(_PREFIX).lower() for name, value in budget_pb2.BudgetPeriod.items() if value]
_TOKENS = re.compile(r"(\d{1,9})([kKmM]?)")
_FACTORS = {"": 1, "k": 10**3, "m": 10**6}

budgets = typer.Typer(help="Limit the use of tokens and money.", no_args_is_help=True)


@budgets.command("set", cls=PlainCommand)
def set_budget(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose budget it is.")],
    *,
    tokens: Annotated[str, typer.Option(metavar="N", help="Most tokens of a period, such as 500k or 20M.")] = "",
    usd: Annotated[float | None, typer.Option(metavar="X", help="Most cost of a period in USD.", min=0)] = None,
    per: Annotated[
        str, typer.Option(metavar="PERIOD", help="minute, hour, day, month or total.", autocompletion=words(_PERIODS))
    ] = "month",
    subject: Annotated[str, typer.Option(metavar="NAME", help="Only for this caller of the tenant.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the budget as a line of JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Set the budget of a tenant, or of one of its callers; without --tokens and --usd it is deleted."""
    with reporting_errors():
        period, limit = _period_of(per), _tokens_of(tokens)
        with Client(address, timeout_s=timeout) as client:
            budget = client.set_budget(tenant, period, max_tokens=limit, max_cost_usd=usd, subject=subject)
    is_deleted = limit is None and usd is None
    if is_deleted:
        whose = f"subject {subject} of tenant {tenant}" if subject else f"tenant {tenant}"
        note(f"{whose} no longer has a budget")
    if as_json or not is_deleted:
        _print([budget], as_json=as_json)


@budgets.command("list", cls=PlainCommand)
def list_budgets(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print each budget as a line of JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """List all budgets."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        all_budgets = client.list_budgets()
    _print(all_budgets, as_json=as_json)


@budgets.command("show", cls=PlainCommand)
def show_budget(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print each budget as a line of JSON.")] = False,
    timeout: options.Timeout = options.TIMEOUT_S,
    address: options.Address = options.ORCHESTRATOR,
) -> None:
    """Show the budgets to which your work is charged: yours and your tenant's."""
    with reporting_errors(), Client(address, timeout_s=timeout) as client:
        own_budgets = client.budgets()
    _print(own_budgets, as_json=as_json)


def _print(budgets_: list[budget_pb2.Budget], *, as_json: bool) -> None:
    if not as_json:
        _show(budgets_)
        return
    for budget in budgets_:
        print_json(budget, one_line=True)


def _show(budgets_: list[budget_pb2.Budget]) -> None:
    table = list_table(("tenant", "subject", "period", "since", "tokens", "of", "USD", "of"))
    for budget in budgets_:
        period = name_of(budget_pb2.BudgetPeriod, budget.period, _PREFIX).lower()
        since = budget.period_start.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M")
        max_tokens = str(budget.max_tokens) if budget.HasField("max_tokens") else "any"
        max_cost = f"{budget.max_cost_usd:.2f}" if budget.HasField("max_cost_usd") else "any"
        cost = f"{budget.granted_cost_usd:.4f}"
        whose = (budget.tenant, budget.subject or "all")
        table.add_row(*map(cell, (*whose, period, since, str(budget.granted_tokens), max_tokens, cost, max_cost)))
    show(table)


def _period_of(text: str) -> budget_pb2.BudgetPeriod.ValueType:
    periods = {name.removeprefix(_PREFIX).lower(): number for name, number in budget_pb2.BudgetPeriod.items() if number}
    if text.lower() not in periods:
        raise UsageError(f"--per {text!r}: use one of {', '.join(periods)}")
    return periods[text.lower()]


def _tokens_of(text: str) -> int | None:
    if not text:
        return None
    match = _TOKENS.fullmatch(text)
    if match is None:
        raise UsageError(f"--tokens {text!r}: use a number, or one with k or M, such as 500k")
    return int(match[1]) * _FACTORS[match[2].lower()]
