"""Scores the tool calls of an answer: the tools, their order and their arguments."""

from __future__ import annotations

from typing import Any, Literal

from gateway.evaluation.scoring.answer import ToolUse
from gateway.evaluation.scoring.scorer import Expectation, ExpectedCall, Score, Scorer, Subject, same_json

Matches = list[list[bool]]  # A row for each expected call and a column for each actual call.


class Trajectory(Scorer):
    """The share of expected tool calls that were made.

    With `in_order`, the score counts the largest number of expected calls that were made in the expected order. With
    `any_order`, the order does not matter. Other calls may occur in between. With `exact`, the score is 1 if exactly
    the expected calls were made in the expected order. A call must have the expected arguments and, with
    `whole_arguments`, no other arguments.
    """

    type: Literal["trajectory"] = "trajectory"
    match: Literal["exact", "in_order", "any_order"] = "in_order"
    whole_arguments: bool = False

    def lacks(self, expectation: Expectation) -> str:
        """Return `tools` if the case does not set it. An empty list expects no tool calls."""
        if expectation.tools is None:
            return "tools"
        return ""

    async def score(self, subject: Subject) -> Score:
        """Match the actual calls to the expected calls."""
        expected, made = subject.expectation.tools or (), subject.answer.tools
        note = f"called {', '.join(call.name for call in made) or 'nothing'}"
        if not expected:
            return Score(float(not made), note)
        matches = [[self._is_match(expected_call, call) for call in made] for expected_call in expected]
        return Score(_SHARES[self.match](matches), note)

    def _is_match(self, expected: ExpectedCall, made: ToolUse) -> bool:
        if expected.name != made.name:
            return False
        if expected.arguments is None:
            return True
        if self.whole_arguments:
            return same_json(made.arguments, expected.arguments)
        return isinstance(made.arguments, dict) and _has(made.arguments, expected.arguments)


def _has(made: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(name in made and same_json(made[name], value) for name, value in expected.items())


def _exact_share(matches: Matches) -> float:
    """Return 1 if each expected call matches the call at its position and there is no other call, and 0 otherwise."""
    return float(len(matches[0]) == len(matches) and all(row[index] for index, row in enumerate(matches)))


def _ordered_share(matches: Matches) -> float:
    """Return the length of the longest common subsequence as a share of the expected calls."""
    best = [0] * (len(matches[0]) + 1)
    for row in matches:
        above = best
        best = [0]
        for column, is_match in enumerate(row):
            best.append(max(above[column] + is_match, above[column + 1], best[column]))
    return best[-1] / len(matches)


def _paired_share(matches: Matches) -> float:
    """Return the size of the largest matching as a share of the expected calls. Source: Kuhn's augmenting paths."""
    pairing: dict[int, int] = {}
    count = sum(_augment(row, matches, pairing, set()) for row in range(len(matches)))
    return count / len(matches)


def _augment(row: int, matches: Matches, taken: dict[int, int], seen: set[int]) -> bool:
    for column, is_match in enumerate(matches[row]):
        if not is_match or column in seen:
            continue
        seen.add(column)
        if column not in taken or _augment(taken[column], matches, taken, seen):
            taken[column] = row
            return True
    return False


_SHARES = {"exact": _exact_share, "in_order": _ordered_share, "any_order": _paired_share}
