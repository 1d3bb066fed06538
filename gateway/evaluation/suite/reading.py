"""Creates a suite from JSON values and checks that each case has a scorer and each scorer a case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from gateway.evaluation.scoring.scorer import Scorer
from gateway.evaluation.suite.model import Case, Suite, SuiteError

_REASONS = {
    "extra_forbidden": "there is no such field",
    "union_tag_invalid": "there is no scorer {tag!r}: there are {expected_tags}",
    "union_tag_not_found": "a scorer is written as `exact`, or as `numeric: {{tolerance: 0.1}}`",
}


def suite_of(written: Any) -> Suite:
    """Return a suite from JSON values. Cases without a name are numbered. Raises SuiteError if the suite is invalid."""
    if not isinstance(written, dict):
        raise SuiteError("a suite is a mapping with `cases` and `scorers`")
    cases = written.get("cases")
    if isinstance(cases, list):
        written = {**written, "cases": [_with_name(case, number) for number, case in enumerate(cases, 1)]}
    try:
        suite = Suite.model_validate(written)
        _check(suite)
    except ValidationError as error:
        raise SuiteError(_reason_of(error, cases)) from None
    return suite


def _with_name(case: Any, number: int) -> Any:
    if isinstance(case, dict) and "name" not in case:
        return {"name": f"case-{number:04d}", **case}
    return case


def _check(suite: Suite) -> None:
    if not suite.cases:
        raise SuiteError("the suite has no cases")
    names: set[str] = set()
    for case in suite.cases:
        if case.name in names:
            raise SuiteError(f"two cases are named {case.name!r}: names must differ")
        names.add(case.name)
        _check_case(suite, case)
    used = suite.all_scorers()
    for shared in suite.scorers:
        if shared.label not in used:
            raise SuiteError(f"the scorer {shared.label!r} scores no case: it needs {_lack_of(shared, suite.cases)}")
    kinds: dict[str, str] = {}
    for case in suite.cases:
        for scorer in suite.scorers_of(case):
            if kinds.setdefault(scorer.label, scorer.type) != scorer.type:
                raise SuiteError(f"{scorer.label!r} names scorers of two types: give one of them another name")


def _check_case(suite: Suite, case: Case) -> None:
    if not case.input_text.strip() and not {"messages", "text_prompt"} & (case.request.keys() | suite.request.keys()):
        raise SuiteError(f"case {case.name!r} has no input")
    _check_labels(suite.scorers)
    _check_labels(case.scorers)
    for own in case.scorers:
        if lack := own.lacks(case.expectation):
            raise SuiteError(f"case {case.name!r} has no {lack}, which its scorer {own.label!r} needs")
    scorers = suite.scorers_of(case)
    if not scorers:
        raise SuiteError(f"case {case.name!r} has no scorer: name scorers, and give the case what they need")
    for scorer in scorers:
        try:
            scorer.check(case.expectation)
        except ValueError as error:
            raise SuiteError(f"case {case.name!r}: {error}") from None


def _check_labels(scorers: Sequence[Scorer]) -> None:
    labels = [scorer.label for scorer in scorers]
    if len(set(labels)) < len(labels):
        raise SuiteError(f"two scorers have the name {max(labels, key=labels.count)!r}: give one a `name`")


def _lack_of(scorer: Scorer, cases: Sequence[Case]) -> str:
    return next(
        (lack for case in cases if (lack := scorer.lacks(case.expectation))), "a case without a scorer of its name"
    )


def _reason_of(error: ValidationError, cases: Any) -> str:
    """Describe the first problem, with the name of its case and the path to the problem."""
    problem = error.errors(include_url=False)[0]
    path = [str(part) for part in problem["loc"]]
    where = ""
    if path[:1] == ["cases"] and len(path) > 1 and isinstance(cases, list):
        case = cases[int(path[1])]
        name = case.get("name") if isinstance(case, dict) else None
        where = f"case {name!r}: " if isinstance(name, str) else f"case {int(path[1]) + 1}: "
        path = path[2:]
    if path:
        where += f"{'.'.join(path)}: "
    reason = problem["msg"].removeprefix("Value error, ")
    if problem["type"] in _REASONS:
        reason = _REASONS[problem["type"]].format(**problem.get("ctx", {}))
    return f"{where}{reason[:1].lower()}{reason[1:]}"
