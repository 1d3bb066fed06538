"""Counts what replicas of one request voted for.

A ballot is a JSON document; two are the same vote when their canonical JSON (RFC 8785) is equal, so 1 and 1.0 are.
Ballots that abstain are not here: they count in `n` only. Groups are ordered by votes, ties to the lowest replica.

Invariants:
    1. What `is_decided` says of some ballots holds whatever the outstanding replicas say: the same winner, or none.
    2. A winner's agreement is at least min_agreement, and what its strategy demands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import rfc8785

from pagantic_common.domain.json_text import dump_json, parse_json

DEFAULT_REPLICAS = 3
DEFAULT_TEMPERATURE = 0.7
_ABSENT = "absent"


class Strategy(StrEnum):
    """How votes are counted."""

    MAJORITY = "MAJORITY"
    STRICT_MAJORITY = "STRICT_MAJORITY"
    UNANIMITY = "UNANIMITY"
    FIELD_MAJORITY = "FIELD_MAJORITY"


@dataclass(frozen=True, slots=True)
class Voting:
    """How to vote; `min_agreement` is a fraction of n."""

    n: int = DEFAULT_REPLICAS
    strategy: Strategy = Strategy.MAJORITY
    min_agreement: float = 0.0
    early_stop: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Replicas that said the same, in ascending order."""

    key: str
    replicas: tuple[int, ...]

    @property
    def votes(self) -> int:
        """How many they are."""
        return len(self.replicas)


@dataclass(frozen=True, slots=True)
class Count:
    """What a vote gave.

    Attributes:
        winner: The replica whose document won; None when nothing did, or when the fields were voted on one by one.
        merged_json: The document put together from the fields' winners, FIELD_MAJORITY only.
        agreement: Votes of the winner, of its weakest field, as a fraction of n.
        objection: Why nothing won; empty when something did.
    """

    groups: tuple[Group, ...]
    winner: int | None = None
    merged_json: str = ""
    agreement: float = 0.0
    objection: str = ""


def canonical_json(document: str) -> str:
    """Return what votes are compared by."""
    return _key(parse_json(document))


def _key(value: Any) -> str:
    try:
        return rfc8785.dumps(value).decode()
    except rfc8785.CanonicalizationError:  # an integer beyond 2^53
        return json.dumps(_with_whole_numbers(value), sort_keys=True, separators=(",", ":"))


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_whole_numbers(item) for name, item in value.items()}
    return value


def group_ballots(ballots: Mapping[int, str]) -> tuple[Group, ...]:
    """Return the groups of ballots (replica -> document), most votes first."""
    replicas: dict[str, list[int]] = {}
    for index in sorted(ballots):
        replicas.setdefault(canonical_json(ballots[index]), []).append(index)
    groups = [Group(key, tuple(indexes)) for key, indexes in replicas.items()]
    return tuple(sorted(groups, key=lambda group: (-group.votes, group.replicas[0])))


def count_votes(ballots: Mapping[int, str], voting: Voting) -> Count:
    """Count the ballots of all replicas that did not abstain; at least one."""
    groups = group_ballots(ballots)
    leader = groups[0]
    if voting.strategy is Strategy.FIELD_MAJORITY:
        values = {index: parse_json(document) for index, document in ballots.items()}
        merged, votes = _merge(values)
        count = Count(groups, merged_json=dump_json(merged), agreement=votes / voting.n)
    else:
        count = Count(groups, winner=leader.replicas[0], agreement=leader.votes / voting.n)
    objection = _objection(count, ballots, voting)
    return Count(groups, objection=objection) if objection else count


def _objection(count: Count, ballots: Mapping[int, str], voting: Voting) -> str:
    votes = count.groups[0].votes
    if voting.strategy is Strategy.STRICT_MAJORITY and votes * 2 <= voting.n:
        return f"the most frequent answer has {votes} of {voting.n} votes: more than half are needed"
    if voting.strategy is Strategy.UNANIMITY and votes < voting.n:
        return _first_difference(count.groups[0], ballots, voting.n)
    if count.agreement < voting.min_agreement:
        return f"agreement is {count.agreement:.3g}: min_agreement is {voting.min_agreement:.3g}"
    return ""


def _first_difference(leader: Group, ballots: Mapping[int, str], n: int) -> str:
    odd = next((index for index in sorted(ballots) if index not in leader.replicas), None)
    if odd is None:
        return f"{n - len(ballots)} of {n} replicas abstain, and all must agree"
    path = _difference(parse_json(ballots[leader.replicas[0]]), parse_json(ballots[odd]), "")
    return f"replica {odd} differs from replica {leader.replicas[0]} at {path!r}, and all must agree"


def _difference(one: Any, other: Any, path: str) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in [*one, *(name for name in other if name not in one)]:
            below = f"{path}.{name}" if path else name
            if name not in one or name not in other:
                return below
            if _key(one[name]) != _key(other[name]):
                return _difference(one[name], other[name], below)
    return path


def is_decided(ballots: Mapping[int, str], abstained: int, voting: Voting) -> bool:
    """Tell whether the outstanding replicas can change nothing any more."""
    outstanding = voting.n - len(ballots) - abstained
    if outstanding <= 0:
        return True
    groups = group_ballots(ballots)
    votes = groups[0].votes if groups else 0
    second = groups[1].votes if len(groups) > 1 else 0
    has_agreement = votes >= voting.min_agreement * voting.n
    best_possible = votes + outstanding
    if voting.strategy is Strategy.UNANIMITY:
        return len(groups) > 1 or abstained > 0
    if voting.strategy is Strategy.STRICT_MAJORITY:
        return best_possible * 2 <= voting.n or (has_agreement and votes * 2 > voting.n)
    if voting.strategy is Strategy.FIELD_MAJORITY:
        # What more than half say as a whole wins in each field.
        return has_agreement and votes * 2 > voting.n
    return best_possible < voting.min_agreement * voting.n or (has_agreement and votes > second + outstanding)


def _merge(values: Mapping[int, Any]) -> tuple[Any, int]:
    """Vote on the leaves of values (replica -> value); returns the winner and the votes of its weakest leaf."""
    objects = {index: value for index, value in values.items() if isinstance(value, dict)}
    leaves = {index: _key(value) for index, value in values.items() if index not in objects}
    key, replicas = _leading(leaves | dict.fromkeys(objects, "{"))
    if key != "{":
        return values[replicas[0]], len(replicas)
    merged: dict[str, Any] = {}
    weakest = len(objects)
    for name in dict.fromkeys(name for index in sorted(objects) for name in objects[index]):
        has = {index: name if name in value else _ABSENT + name for index, value in objects.items()}
        choice, voters = _leading(has)
        if choice == name:
            merged[name], votes = _merge({index: objects[index][name] for index in voters})
        else:
            votes = len(voters)
        weakest = min(weakest, votes)
    return merged, weakest


def _leading(votes: Mapping[int, str]) -> tuple[str, Sequence[int]]:
    replicas: dict[str, list[int]] = {}
    for index in sorted(votes):
        replicas.setdefault(votes[index], []).append(index)
    return min(replicas.items(), key=lambda item: (-len(item[1]), item[1][0]))
