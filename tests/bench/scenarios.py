"""What is compared: each scenario turns a run into queries, and tells which answers are wrong.

Every run has prompts of its own, so that no cache holds what an earlier run, or an earlier bench, has left there. What
requests of one run share is shared on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import jsonschema_rs

from tests.bench import texts
from tests.bench.load import Query

OUTPUT_TOKENS = 64
SCHEMA_MAX_TOKENS = 700
VOTE_TOKENS = 3
VOTE_CANDIDATES = 5
QUOTE_WORDS = 8
QUOTE_CHARACTERS = 120
PERSONA = "You help in full sentences and explain why."

_TICKET = jsonschema_rs.validator_for(texts.TICKET_SCHEMA)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a scenario: both sides get the same one.

    Attributes:
        warm_up: Asked one after the other before the clock starts.
        queries: Asked by all clients together.
    """

    warm_up: tuple[Query, ...]
    queries: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of load.

    Attributes:
        name: How it is chosen on the command line.
        about: One line for the report.
        make: Builds a run of so many requests from a random stream of its own.
        is_right: Tells whether an answer's text is what the query wanted.
    """

    name: str
    about: str
    make: Callable[[Random, int], Run]
    is_right: Callable[[Query, str], bool]


def _seed(random: Random) -> int:
    return random.randrange(2**31)


def _chat(system: str, user: str, random: Random) -> Query:
    return Query(
        messages=(("system", system), ("user", user)), max_tokens=OUTPUT_TOKENS, seed=_seed(random), is_full_length=True
    )


def _make_chat(random: Random, count: int) -> Run:
    queries = tuple(
        _chat(f"{texts.opening(random)}. {PERSONA}", f"Tell me {random.choice(texts.TOPICS)}.", random)
        for _ in range(count)
    )
    return Run((), queries)


def _shared_queries(system: str, random: Random, count: int) -> tuple[Query, ...]:
    return tuple(
        _chat(system, f"This is {texts.opening(random)}. {random.choice(texts.QUESTIONS)}", random)
        for _ in range(count)
    )


def _make_shared(random: Random, count: int) -> Run:
    first, *queries = _shared_queries(f"Handbook of {texts.opening(random)}. {texts.HANDBOOK}", random, count + 1)
    return Run((first,), tuple(queries))


def _make_shared_cold(random: Random, count: int) -> Run:
    return Run((), _shared_queries(f"Handbook of {texts.opening(random)}. {texts.HANDBOOK}", random, count))


def _make_shared_steady(random: Random, count: int) -> Run:
    first, *queries = _shared_queries(texts.HANDBOOK, random, count + 1)
    return Run((first,), tuple(queries))


def _make_schema(random: Random, count: int) -> Run:
    queries = tuple(
        Query(
            messages=(
                ("system", f"{texts.opening(random)}. You write incident tickets as JSON."),
                ("user", f"{random.choice(texts.NAMES)} reports that {random.choice(texts.FAULTS)}. Write the ticket."),
            ),
            max_tokens=SCHEMA_MAX_TOKENS,
            seed=_seed(random),
            schema=texts.TICKET_SCHEMA,
        )
        for _ in range(count)
    )
    return Run((), queries)


def _make_vote(random: Random, count: int) -> Run:
    return _votes(texts.INCIDENT, random, count)


def _make_vote_long(random: Random, count: int) -> Run:
    return _votes(f"{texts.HANDBOOK}\n{texts.INCIDENT}", random, count)


def _votes(system: str, random: Random, count: int) -> Run:
    queries = tuple(
        Query(
            messages=(("system", system), ("user", texts.REPORT)),
            max_tokens=VOTE_TOKENS,
            temperature=1.0,
            seed=_seed(random),
            candidates=VOTE_CANDIDATES,
            is_full_length=True,
        )
        for _ in range(count)
    )
    return Run(queries[:1], queries)  # what one warm-up leaves, all requests of the run share


def _make_extract(random: Random, count: int) -> Run:
    return Run((), tuple(_extract_query(texts.opening(random), texts.passage(random), 0) for _ in range(count)))


def _make_extract_known(random: Random, count: int) -> Run:
    opening, passage = texts.opening(random), texts.passage(random)
    starts = [0, *(end + 2 for end in range(len(passage) // 2) if passage.startswith(". ", end))]
    first, *queries = (_extract_query(opening, passage, random.choice(starts)) for _ in range(count + 1))
    return Run((first,), tuple(queries))


def _extract_query(opening: str, passage: str, start: int) -> Query:
    beginning = " ".join(passage[start:].split(" ")[:QUOTE_WORDS])
    # Of several wordings this is the one that the default model answers by quoting.
    quoted = f'"{passage}"\n\nHere is the quote once more:\n\n"{beginning}'
    return Query(
        text=f"{opening} wrote:\n\n{quoted}",
        max_tokens=OUTPUT_TOKENS,
        temperature=0.0,
        is_full_length=True,
    )


def _is_any(query: Query, answer: str) -> bool:
    return bool(answer) or query.candidates > 1  # a candidate of three tokens may be all blank


def _is_ticket(_query: Query, answer: str) -> bool:
    try:
        return _TICKET.is_valid(json.loads(answer))
    except ValueError:
        return False


def _is_quote(query: Query, answer: str) -> bool:
    # A small model may leave the text later on.
    return answer[:QUOTE_CHARACTERS] in query.text


SCENARIOS = (
    Scenario("chat", "distinct prompts, 64 tokens", _make_chat, _is_any),
    Scenario("shared", "a new 600-token system prompt per run, seen once before, 64 tokens", _make_shared, _is_any),
    Scenario("shared-cold", "a new 600-token system prompt per run, never seen, 64 tokens", _make_shared_cold, _is_any),
    Scenario("shared-steady", "always the same 600-token system prompt, 64 tokens", _make_shared_steady, _is_any),
    Scenario("schema", "a nested JSON schema of 15 keys, to the end", _make_schema, _is_ticket),
    Scenario("vote", "5 candidates of one shared prompt, 3 tokens each", _make_vote, _is_any),
    Scenario("vote-long", "the same on a prompt of 700 tokens", _make_vote_long, _is_any),
    Scenario("extract", "answers that quote the prompt, 64 tokens", _make_extract, _is_quote),
    Scenario("extract-known", "the same of one passage per run, seen once before", _make_extract_known, _is_quote),
)
