from __future__ import annotations

import asyncio
import itertools
import threading
from importlib.metadata import EntryPoint

import pytest

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import ErrorCode, Internal, InvalidRequest, Overloaded
from services.rerank.adapters import custom_scorers
from services.rerank.adapters.custom_scorers import CALLS_AT_ONCE, ENTRY_POINT_GROUP, CustomScorer, load_scorers

CHUNKS = [Chunk("1", "red fox", "s"), Chunk("2", "blue", "s")]


MODULE = """
number = 7


def lengths(query, texts):
    return [len(text) for text in texts]
"""
ENTRIES = {"lengths": "my_scorers:lengths", "broken": "nowhere_at_all:score", "number": "my_scorers:number"}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    (tmp_path / "my_scorers.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    entries = [EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in ENTRIES.items()]
    monkeypatch.setattr(custom_scorers, "entry_points", lambda **_: entries)


async def score(function, timeout_s=10.0):
    return await CustomScorer("own", function, timeout_s).score("q", CHUNKS, "")


@pytest.mark.usefixtures("installed")
async def test_a_named_entry_point_scores():
    (scorer,) = load_scorers(["lengths", "lengths"], ["bm25"])
    assert scorer.info.name == "lengths"
    assert await scorer.score("q", CHUNKS, "") == [7.0, 4.0]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("magic", "offer broken, lengths, number in the group 'pagantic.scorers'"),
        ("bm25", "is a built-in scorer"),
        ("broken", "cannot be imported: ModuleNotFoundError"),
        ("number", "is no function: 'my_scorers:number'"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_at_start(name, problem):
    with pytest.raises(InvalidRequest, match=f"CUSTOM_SCORERS names '{name}'.*{problem}"):
        load_scorers([name], ["bm25"])


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ([1.0], "did not return one score for each of the 2 chunks"),
        (itertools.repeat(1.0), "did not return one score for each of the 2 chunks"),
        ([1.0, float("nan")], "not a finite number"),
        (["a", "b"], "not a list of numbers"),
        (None, "not a list of numbers"),
    ],
)
async def test_a_wrong_result_is_the_requests_failure(result, problem):
    with pytest.raises(Internal, match=f"scorer 'own' failed.*{problem}") as raised:
        await score(lambda _query, _texts: result)
    assert raised.value.code is ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED


@pytest.mark.parametrize("error", [ValueError("secret text"), SystemExit(3), TimeoutError("secret text")])
async def test_an_exception_is_named_but_not_quoted(error):
    def fail(_query, _texts):
        raise error

    with pytest.raises(Internal, match=f"it raised {type(error).__name__}") as raised:
        await score(fail)
    assert "secret" not in str(raised.value)


async def test_a_function_without_end_fails_in_time_and_counts_as_busy():
    end = threading.Event()
    scorer = CustomScorer("own", lambda _query, texts: end.wait() and [0.0] * len(texts), 0.01)
    for _ in range(CALLS_AT_ONCE):
        with pytest.raises(Internal, match=r"took more than 0\.01 s"):
            await scorer.score("q", CHUNKS, "")
    with pytest.raises(Overloaded, match="4 calls at once already") as raised:
        await scorer.score("q", CHUNKS, "")
    assert raised.value.retry_after_s
    end.set()
    patient = CustomScorer("own", lambda _query, texts: [0.0] * len(texts), 10.0)
    assert await asyncio.gather(*(patient.score("q", CHUNKS, "") for _ in range(2))) == [[0.0, 0.0]] * 2
