"""Facts that pages name are those of the code: scopes, limits, retrievers, error codes, and where something is."""

import re

import pytest

from pagantic_common.domain.calls.principal import Scope
from pagantic_common.domain.errors import ErrorCategory, ErrorCode
from services.orchestrator.adapters import context_proxy
from services.orchestrator.core.model.plan import MAX_PARALLEL, MAX_PARALLEL_CALLS
from services.orchestrator.core.plans.step_rules import RETRIEVERS
from services.orchestrator.servicer import SCOPES
from tests.support.pages import ROOT

DOCS = ROOT / "deploy" / "docs"
# The codes of the document that names them, and whether a request with one may be sent again there.
DESIGN_CODES = [
    *("rate_limit", "timeout", "provider_unavailable", "auth_error", "invalid_input", "tool_failed"),
    *("guard_blocked", "budget_exhausted"),
]


def words_of(page):
    return " ".join((DOCS / page).read_text(encoding="utf-8").split())


def rows_of(page, heading):
    """Return the cells of each row of the first table with this heading."""
    text = (DOCS / page).read_text(encoding="utf-8")
    table = text.partition(f"\n{heading}\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[1:]]


def test_each_scope_has_its_methods():
    rows = rows_of("identity.md", "| scope | methods |")
    named = {
        scope.strip("`"): set(re.findall(r"\b[A-Z][A-Za-z]+", methods.partition(":")[0])) for scope, methods in rows
    }
    methods = {**SCOPES, **context_proxy.SCOPES}
    assert named == {scope: {name for name, needed in methods.items() if needed is scope} for scope in Scope}


def test_the_methods_that_change_a_collection_are_named():
    (named,) = [row[2] for row in rows_of("identity.md", "| action | resource | asked before |") if "change" in row[0]]
    changing = {name for name, scope in context_proxy.SCOPES.items() if scope is Scope.WRITE}
    assert set(named.split(", ")) == changing


@pytest.mark.parametrize("page", ["plans.md", "durability.md"])
def test_the_work_that_runs_at_the_same_time_is_counted(page):
    found = re.search(r"at most (\d+) (?:plan )?steps and (\d+) tool calls at the same time", words_of(page))
    assert found is not None
    assert tuple(map(int, found.groups())) == (MAX_PARALLEL, MAX_PARALLEL_CALLS)


def test_the_retrievers_of_a_step_are_named():
    (row,) = [row for row in rows_of("plans.md", "| kind | parameters | input | output |") if row[0] == "retrieve"]
    assert f"retriever ({', '.join(RETRIEVERS)})" in row[1]


def test_the_place_of_the_prompt_provider_has_it():
    named = re.findall(r"`(services/[\w/]+\.py)`", words_of("memory.md"))
    assert named == ["services/orchestrator/ports/services.py", "services/orchestrator/wiring/files.py"]
    ports, wiring = ((ROOT / path).read_text(encoding="utf-8") for path in named)
    assert "class PromptProvider(" in ports
    assert "PromptFolder(" in wiring.partition("def read_files(")[2]


def test_each_code_of_the_design_has_ours_with_their_flag():
    named, code = {}, ""
    for there, here, retryable in rows_of("errors.md", "| there | here | `retryable` here |"):
        code = there.strip("`") or code
        for name in re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", here):
            ours = ErrorCode(name)
            is_tools = ours.category is ErrorCategory.TOOL_FAILURE
            says = "no" if not ours.is_retryable else "if the tool is idempotent" if is_tools else "yes"
            assert re.split("[:,]", retryable)[0] == says, name
            named.setdefault(code, []).append(name)
    assert list(named) == DESIGN_CODES
