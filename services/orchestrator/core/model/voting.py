"""Counts the votes of the replicas of one request.

A vote is a JSON document. Two votes are equal if their canonical JSON (RFC 8785) is equal, as for 1 and 1.0. Abstaining
replicas count only in `n`. Groups are ordered by their number of votes. A tie goes to the group with the lowest
replica.

Invariants:
    1. Once `is_decided` returns True, the outstanding replicas cannot change the winner, or the lack of a winner.
    2. A winner reaches min_agreement, and has the votes that its strategy requires.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import rfc8785

from pagantic_common.domain.text.json_text import dump_json, parse_json

DEFAULT_REPLICAS = 3
DEFAULT_TEMPERATURE = 0.7
VoteT = TypeVar("VoteT", bound=Hashable)


class Strategy(StrEnum):
    """A strategy for counting votes."""

    MAJORITY = "MAJORITY"
    STRICT_MAJORITY = "STRICT_MAJORITY"
    UNANIMITY = "UNANIMITY"
    FIELD_MAJORITY = "FIELD_MAJORITY"


@dataclass(frozen=True, slots=True)
class Voting:
    """The options of a vote. `min_agreement` is a fraction of `n`."""

    n: int = DEFAULT_REPLICAS
    strategy: Strategy = Strategy.MAJORITY
    min_agreement: float = 0.0
    early_stop: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """The replicas that cast the same vote, in ascending order."""

    key: str
    replicas: tuple[int, ...]

    @property
    def votes(self) -> int:
        """The number of replicas that cast this vote."""
        return len(self.replicas)


@dataclass(frozen=True, slots=True)
class Count:
    """The result of a vote.

    Attributes:
        winner: The replica with the winning document; None without a winner, and always None under FIELD_MAJORITY.
        merged_json: The document of the winning fields, set only under FIELD_MAJORITY.
        agreement: The votes of the winner, or of its weakest field, as a fraction of n.
        objection: The reason that there is no winner, or an empty string if there is a winner.
    """

    groups: tuple[Group, ...]
    winner: int | None = None
    merged_json: str = ""
    agreement: float = 0.0
    objection: str = ""


def canonical_json(document: str) -> str:
    """Return the canonical JSON of a document, which identifies equal votes."""
    return _key(parse_json(document))


def _key(value: Any) -> str:
    try:
        return rfc8785.dumps(value).decode()
    except rfc8785.CanonicalizationError:  # an integer larger than 2^53
        return json.dumps(_with_whole_numbers(value), sort_keys=True, separators=(",", ":"))


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_whole_numbers(item) for name, item in value.items()}
    return value


def group_documents(documents: Mapping[int, str]) -> tuple[Group, ...]:
    """Return groups of equal documents in descending order of votes, given the documents by replica."""
    replicas: dict[str, list[int]] = {}
    for index in sorted(documents):
        replicas.setdefault(canonical_json(documents[index]), []).append(index)
    groups = [Group(key, tuple(indexes)) for key, indexes in replicas.items()]
    return tuple(sorted(groups, key=lambda group: (-group.votes, group.replicas[0])))


def count_votes(documents: Mapping[int, str], voting: Voting) -> Count:
    """Count the votes of all replicas that did not abstain. At least one vote is required."""
    groups = group_documents(documents)
    leader = groups[0]
    if voting.strategy is Strategy.FIELD_MAJORITY:
        values = {index: parse_json(document) for index, document in documents.items()}
        merged, votes = _merge(values)
        count = Count(groups, merged_json=dump_json(merged), agreement=votes / voting.n)
    else:
        count = Count(groups, winner=leader.replicas[0], agreement=leader.votes / voting.n)
    objection = _objection(count, documents, voting)
    if objection:
        return Count(groups, objection=objection)
    return count


def _objection(count: Count, documents: Mapping[int, str], voting: Voting) -> str:
    votes = count.groups[0].votes
    if voting.strategy is Strategy.STRICT_MAJORITY and votes * 2 <= voting.n:
        return f"the most frequent answer has {votes} of {voting.n} votes: more than half are needed"
    if voting.strategy is Strategy.UNANIMITY and votes < voting.n:
        return _first_difference(count.groups[0], documents, voting.n)
    if count.agreement < voting.min_agreement:
        return f"agreement is {count.agreement:.3g}: min_agreement is {voting.min_agreement:.3g}"
    return ""


def _first_difference(leader: Group, documents: Mapping[int, str], n: int) -> str:
    odd = next((index for index in sorted(documents) if index not in leader.replicas), None)
    if odd is None:
        return f"{n - len(documents)} of {n} replicas abstain, and all must agree"
    path = ".".join(_difference(parse_json(documents[leader.replicas[0]]), parse_json(documents[odd])))
    return f"replica {odd} differs from replica {leader.replicas[0]} at {path!r}, and all must agree"


def _difference(one: Any, other: Any) -> tuple[str, ...]:
    """Return the path of the first field in which two documents differ.

    The path is empty if the documents differ as a whole.
    """
    if not isinstance(one, dict) or not isinstance(other, dict):
        return ()
    for name in [*one, *(name for name in other if name not in one)]:
        if name not in one or name not in other:
            return (name,)
        if _key(one[name]) != _key(other[name]):
            return (name, *_difference(one[name], other[name]))
    return ()


def is_decided(documents: Mapping[int, str], abstained: int, voting: Voting) -> bool:
    """Return whether the outstanding replicas can no longer change the result."""
    outstanding = voting.n - len(documents) - abstained
    if outstanding <= 0:
        return True
    votes = [group.votes for group in group_documents(documents)]
    if voting.strategy is Strategy.UNANIMITY:
        return len(votes) > 1 or abstained > 0
    leader, runner_up, *_ = [*votes, 0, 0]
    return _is_settled(leader, runner_up, outstanding, voting)


def _is_settled(leader: int, runner_up: int, outstanding: int, voting: Voting) -> bool:
    """Return whether the leader has won, or no document can win any more."""
    needed = voting.min_agreement * voting.n
    has_won = leader >= needed and leader * 2 > voting.n
    if voting.strategy is Strategy.FIELD_MAJORITY:
        return has_won  # A document with more than half of the votes wins in each field.
    if voting.strategy is Strategy.STRICT_MAJORITY:
        return has_won or (leader + outstanding) * 2 <= voting.n
    return leader + outstanding < needed or (leader >= needed and leader > runner_up + outstanding)


def _merge(values: Mapping[int, Any]) -> tuple[Any, int]:
    """Merge values, given by replica, by a vote on each leaf.

    Returns the merged value and the votes of its weakest leaf.
    """
    objects = {index: value for index, value in values.items() if isinstance(value, dict)}
    leaves = {index: _key(value) for index, value in values.items() if index not in objects}
    key, replicas = _leading(leaves | dict.fromkeys(objects, "{"))
    if key != "{":
        return values[replicas[0]], len(replicas)
    return _merge_objects(objects)


def _merge_objects(objects: Mapping[int, dict[str, Any]]) -> tuple[dict[str, Any], int]:
    """Merge objects, given by replica, by a vote on each field: first on its presence, then on its value.

    Returns the merged object and the votes of its weakest field.
    """
    merged: dict[str, Any] = {}
    weakest = len(objects)
    for name in dict.fromkeys(name for index in sorted(objects) for name in objects[index]):
        is_present, voters = _leading({index: name in value for index, value in objects.items()})
        votes = len(voters)
        if is_present:
            merged[name], votes = _merge({index: objects[index][name] for index in voters})
        weakest = min(weakest, votes)
    return merged, weakest


def _leading(votes: Mapping[int, VoteT]) -> tuple[VoteT, Sequence[int]]:
    """Return the most frequent vote and its replicas. A tie goes to the vote of the lowest replica."""
    replicas: dict[VoteT, list[int]] = {}
    for index in sorted(votes):
        replicas.setdefault(votes[index], []).append(index)
    return min(replicas.items(), key=lambda item: (-len(item[1]), item[1][0]))
