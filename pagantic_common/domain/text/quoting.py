"""Quotes untrusted text for use in a prompt."""

from __future__ import annotations

import re

MAX_RUN = 16
_LONG_RUNS = re.compile(f"`{{{MAX_RUN + 1},}}")
_RUNS = re.compile("`{3,}")


def fenced(text: str) -> str:
    """Return a text in a fence that its lines cannot close (CommonMark, section 4.5).

    Runs of backticks are shortened to 16, so that the fence stays short.
    """
    text = _LONG_RUNS.sub("`" * MAX_RUN, text)
    longest = max(map(len, _RUNS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text}\n{fence}"
