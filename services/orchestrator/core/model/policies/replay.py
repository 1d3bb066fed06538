"""The part of a request that names a recorded execution to run again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from pagantic_common.domain.errors import InvalidRequest
from pagantic_common.domain.ids import require_id, require_printable

MAX_CHANGED_RESULTS = 128
MAX_STEP_CHARS = 200
MAX_CALL_ID_CHARS = 400


class ReplayTools(StrEnum):
    """The tools that a replay calls."""

    RECORDED = "RECORDED"
    LIVE = "LIVE"


@dataclass(frozen=True, slots=True)
class ChangedResult:
    """Another result of a recorded call."""

    call_id: str
    result: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ReplayPolicy:
    """A recorded execution that runs again from a step on; an empty `from_step` is chosen by the changes."""

    request_id: str
    from_step: str = ""
    results: tuple[ChangedResult, ...] = ()
    tools: ReplayTools = ReplayTools.RECORDED

    def check(self) -> None:
        """Raise InvalidRequest for names that cannot be, and too many results."""
        require_id("replay.request_id", self.request_id)
        require_printable("replay.from_step", self.from_step, MAX_STEP_CHARS)
        if len(self.results) > MAX_CHANGED_RESULTS:
            raise InvalidRequest(
                f"replay.tool_results has {len(self.results)} entries, at most {MAX_CHANGED_RESULTS} are taken"
            )
        for call_id, count in Counter(one.call_id for one in self.results).items():
            require_printable("replay.tool_results.tool_call_id", call_id, MAX_CALL_ID_CHARS)
            if count > 1:
                raise InvalidRequest(f"replay.tool_results has {count} results of the call {call_id!r}: send one")
