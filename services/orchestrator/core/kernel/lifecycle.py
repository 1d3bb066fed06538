"""Defines the lifecycle of an execution as a table of legal transitions.

Invariants:
    1. COMPLETE, ERROR and CANCELLED are terminal states: no transition leaves them.
    2. Every live state leads to ERROR and to CANCELLED.
    3. The attempt counts how often EXECUTE was entered, starting at 1.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """A state of an execution's lifecycle, from INIT to a terminal state."""

    INIT = "INIT"
    PLAN = "PLAN"
    PREPARE = "PREPARE"
    EXECUTE = "EXECUTE"
    VALIDATE = "VALIDATE"
    COMPLETE = "COMPLETE"
    ERROR = "ERROR"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Whether no transition leaves the state."""
        return self in TERMINAL


TERMINAL = frozenset({State.COMPLETE, State.ERROR, State.CANCELLED})
_ENDS = frozenset({State.ERROR, State.CANCELLED})

TRANSITIONS: dict[State, frozenset[State]] = {
    State.INIT: frozenset({State.PLAN, State.PREPARE}) | _ENDS,
    State.PLAN: frozenset({State.PREPARE}) | _ENDS,
    State.PREPARE: frozenset({State.EXECUTE}) | _ENDS,
    State.EXECUTE: frozenset({State.VALIDATE, State.COMPLETE}) | _ENDS,
    State.VALIDATE: frozenset({State.COMPLETE, State.EXECUTE}) | _ENDS,
    State.COMPLETE: frozenset(),
    State.ERROR: frozenset(),
    State.CANCELLED: frozenset(),
}


class IllegalTransitionError(RuntimeError):
    """Raised if a transition is not in the table, which is a programming error."""


class IllegalAnswerError(RuntimeError):
    """Raised if a machine receives anything but the answer to its outstanding command.

    The cause is a programming error, or a journal with a missing entry.
    """


def check_transition(source: State, target: State) -> None:
    """Raise IllegalTransitionError unless the table contains the transition."""
    if target not in TRANSITIONS[source]:
        raise IllegalTransitionError(f"{source} does not lead to {target}")
