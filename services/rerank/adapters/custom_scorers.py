"""Loads a deployment's custom scorers: functions that installed packages provide as entry points.

A function takes the query and the texts of the chunks, and returns one number per text; higher is better. Python cannot
stop the thread of a call, so a call that times out fails while its thread continues and counts as busy.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points

from pagantic_common.domain.chunks import Chunk
from pagantic_common.domain.errors import ErrorCode, Internal, InvalidRequest, Overloaded
from pagantic_common.telemetry.logging import get_logger
from services.rerank.ports import Scorer, ScorerInfo

ENTRY_POINT_GROUP = "pagantic.scorers"
CALLS_AT_ONCE = 4
CALL_S = 10.0
RETRY_AFTER_S = 1.0

ScoreFunction = Callable[[str, Sequence[str]], Sequence[float]]

log = get_logger(__name__)


class _WrongError(Exception):
    """A scorer function raised, or returned an invalid result. The message is meant for callers."""


class CustomScorer:
    """A Scorer that calls a function of an installed package.

    An error or an invalid result fails only its request.

    Args:
        name: The name of the entry point.
        function: Returns a score for each text.
        timeout_s: The maximum duration of a call, in seconds.
    """

    def __init__(self, name: str, function: ScoreFunction, timeout_s: float = CALL_S) -> None:
        self.info = ScorerInfo(name, "a scorer of this deployment", -math.inf, math.inf)
        self._function = function
        self._timeout_s = timeout_s
        self._free = threading.BoundedSemaphore(CALLS_AT_ONCE)

    async def score(self, query: str, chunks: Sequence[Chunk], model: str) -> list[float | None]:  # noqa: ARG002
        """Return a score for each chunk.

        Raises Internal if the function fails or times out, and Overloaded if too many calls are already running.
        """
        name, texts = self.info.name, [chunk.content for chunk in chunks]
        if not self._free.acquire(blocking=False):
            raise Overloaded(
                f"scorer {name!r} has {CALLS_AT_ONCE} calls at once already: try again later",
                retry_after_s=RETRY_AFTER_S,
            )
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Sequence[float]] = loop.create_future()
        # The thread is a daemon, so a function that never returns cannot block the shutdown of the service.
        threading.Thread(target=self._run, args=(loop, done, query, texts), daemon=True).start()
        try:
            return list(await asyncio.wait_for(done, self._timeout_s))
        except TimeoutError:
            raise _failure(name, f"it took more than {self._timeout_s:g} s; send fewer chunks") from None
        except _WrongError as error:
            raise _failure(name, str(error)) from None

    def _run(
        self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[Sequence[float]], query: str, texts: list[str]
    ) -> None:
        try:
            scores = _checked(self._function(query, texts), len(texts))
        except _WrongError as error:
            _settle(loop, done, error)
        except BaseException as error:
            # The error text may quote the chunks, so it goes only to the log.
            log.exception("a custom scorer failed", scorer=self.info.name)
            _settle(loop, done, _WrongError(f"it raised {type(error).__name__}; the service's log has the traceback"))
        else:
            _settle(loop, done, scores)
        finally:
            self._free.release()


def load_scorers(names: Sequence[str], taken: Sequence[str]) -> list[Scorer]:
    """Return the named scorers of installed packages. Raises InvalidRequest (CONFIG_INVALID) if a name is invalid."""
    offered = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return [CustomScorer(name, _load(name, offered, taken)) for name in dict.fromkeys(names)]


def _load(name: str, offered: dict[str, EntryPoint], taken: Sequence[str]) -> ScoreFunction:
    where = f"CUSTOM_SCORERS names {name!r}"
    if name in taken:
        raise InvalidRequest(f"{where}, which is a built-in scorer: give the entry point another name")
    if name not in offered:
        names = ", ".join(sorted(offered)) or "none"
        raise InvalidRequest(f"{where}, but the installed packages offer {names} in the group {ENTRY_POINT_GROUP!r}")
    try:
        function = offered[name].load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a package may raise anything
        raise InvalidRequest(f"{where}, which cannot be imported: {type(error).__name__}: {error}") from None
    if not callable(function):
        raise InvalidRequest(f"{where}, which is no function: {offered[name].value!r}")
    return function  # type: ignore[no-any-return]


def _settle(
    loop: asyncio.AbstractEventLoop, done: asyncio.Future[Sequence[float]], result: Sequence[float] | Exception
) -> None:
    def settle() -> None:
        if done.done():
            return
        if isinstance(result, Exception):
            done.set_exception(result)
        else:
            done.set_result(result)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the event loop is closed, so no caller is waiting
        return


def _checked(scores: Sequence[float], count: int) -> list[float]:
    try:
        numbers = [float(score) for score in itertools.islice(scores, count + 1)]
    except (TypeError, ValueError, OverflowError):
        raise _WrongError("its result is not a list of numbers") from None
    if len(numbers) != count:
        raise _WrongError(f"it did not return one score for each of the {count} chunks")
    if not all(map(math.isfinite, numbers)):
        raise _WrongError("it returned a score that is not a finite number")
    return numbers


def _failure(name: str, reason: str) -> Internal:
    return Internal(f"scorer {name!r} failed: {reason}", code=ErrorCode.ORCHESTRATION_DEPENDENCY_FAILED)
