"""Unicode normalization of any text in time proportional to its length."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Final

MAX_COMBINING_RUN: Final = 30  # No language has longer runs.
# Characters that are invisible or take no space: format characters, variation selectors, fillers and the joiner below.
INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
JOINER: Final = "\u034f"  # The combining grapheme joiner, which normalization does not reorder across.
# All characters that normalization reorders lie between these two code points; a test checks all of Unicode.
_FIRST_COMBINING, _LAST_COMBINING = 0x300, 0x1F000


def normalize_nfkc(text: str) -> str:
    """Return the text in NFKC, with a joiner after every 30 consecutive combining characters.

    Python sorts a run of combining characters in time quadratic in its length, and holds the interpreter lock
    meanwhile. Source: Unicode Standard Annex 15, Stream-Safe Text Format.
    """
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", _full_runs().sub(lambda match: match[0] + JOINER, text))


def is_reordered(char: str) -> bool:
    """Return whether normalization may move a character past its neighbours."""
    return unicodedata.combining(unicodedata.normalize("NFKD", char)[0]) != 0


@cache
def _full_runs() -> re.Pattern[str]:
    characters = "".join(filter(is_reordered, map(chr, range(_FIRST_COMBINING, _LAST_COMBINING))))
    return re.compile(f"[{re.escape(characters)}]{{{MAX_COMBINING_RUN}}}(?=[{re.escape(characters)}])")
