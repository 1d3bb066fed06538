"""Joins the tokens of a query and a text into the sequence that a cross-encoder reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pagantic_common.domain.errors import ErrorCode, Internal, InvalidRequest
from pagantic_common.models.kinds import SCORE_PAIRS
from services.inference.core.embedding import Vectors

CAPABILITY = SCORE_PAIRS


@dataclass(frozen=True, slots=True)
class PairLayout:
    """The tokens and white space that a model expects around query and text.

    Attributes:
        before: The tokens before the query.
        between: The tokens between the query and the text.
        after: The tokens after the text.
        query_lead: The white space that the tokenizer must see together with the query.
        text_lead: The white space that the tokenizer must see together with the text.
    """

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    query_lead: str = ""
    text_lead: str = ""

    @property
    def size(self) -> int:
        """The number of tokens besides the query and the text."""
        return len(self.before) + len(self.between) + len(self.after)

    def check_query(self, query: Sequence[int], window: int) -> None:
        """Raise InvalidRequest (INFERENCE_CONTEXT_EXCEEDED) if the query leaves too little of the window for texts.

        Half of the window, and at least one token, is reserved for the text.
        """
        limit = min(window // 2, window - self.size - 1)
        if len(query) > limit:
            raise InvalidRequest(
                f"query has {len(query)} tokens, at most {limit} leave texts room in the context window of {window}: "
                "shorten it",
                code=ErrorCode.INFERENCE_CONTEXT_EXCEEDED,
                details={"prompt_tokens": len(query), "context_window": window},
            )

    def join(self, query: Sequence[int], text: Sequence[int], window: int) -> list[int]:
        """Join a query and a text into a sequence. The text is truncated if the sequence does not fit.

        The query must have passed `check_query`.
        """
        room = window - self.size - len(query)
        return [*self.before, *query, *self.between, *text[:room], *self.after]


@dataclass(frozen=True, slots=True)
class TemplateParts:
    """The fixed parts of a template around a query and a text, with the white space before the query and the text."""

    fixed: tuple[str, str, str]
    query_lead: str
    text_lead: str


def split_template(template: str) -> TemplateParts | None:
    """Return a template's parts around {query} and {document}, or None unless both occur in this order."""
    before, query, rest = template.partition("{query}")
    between, document, after = rest.partition("{document}")
    if not (query and document):
        return None
    head, middle = before.rstrip(" "), between.rstrip(" ")
    return TemplateParts((head, middle, after), before[len(head) :], between[len(middle) :])


def pair_scores(rows: Vectors) -> list[float]:
    """Return the score of each row. Raises Internal (INFERENCE_ENGINE_ERROR) if a score is not finite."""
    if not np.isfinite(rows).all():
        raise Internal("the model gave a score that is not a number", code=ErrorCode.INFERENCE_ENGINE_ERROR)
    return [float(score) for score in rows[:, 0]]
