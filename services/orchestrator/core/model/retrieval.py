"""The retrieval policy of a request: the chunks to retrieve, and their position in the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pagantic_common.domain.chunks import MAX_EXPRESSION_CHARS, MAX_NEIGHBOURS, MAX_SMOOTHING
from pagantic_common.domain.messages import Role
from pagantic_common.domain.text.calibration import MAX_SCALING, Calibration

MAX_WRITTEN_QUERIES = 5


class Retriever(StrEnum):
    """A method of finding chunks. The values are stored in journals: do not change them."""

    UNSPECIFIED = "RETRIEVER_UNSPECIFIED"
    BM25 = "RETRIEVER_BM25"
    VECTOR = "RETRIEVER_VECTOR"
    HYBRID = "RETRIEVER_HYBRID"
    KEYWORD = "RETRIEVER_KEYWORD"


_EMBEDDING_RETRIEVERS = frozenset({Retriever.VECTOR, Retriever.HYBRID})


class SearchFusion(StrEnum):
    """A method of fusing BM25 and vector search. The values are stored in journals: do not change them."""

    UNSPECIFIED = "FUSION_UNSPECIFIED"
    RECIPROCAL_RANK = "FUSION_RECIPROCAL_RANK"
    WEIGHTED = "FUSION_WEIGHTED"


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Further options of a search. An empty filter, 0 and None mean that an option is unset."""

    filter: str = ""
    fusion: SearchFusion = SearchFusion.UNSPECIFIED
    vector_weight: float | None = None
    smoothing: float | None = None
    diversity: float = 0.0
    neighbours: int = 0
    has_section: bool = False

    @property
    def objection(self) -> str:
        """The invalid field and the reason that it is invalid, or an empty string if all options are valid."""
        for name, value, greatest in (
            ("vector_weight", self.vector_weight or 0.0, 1),
            ("smoothing", self.smoothing or 0.0, MAX_SMOOTHING),
            ("diversity", self.diversity, 1),
        ):
            if not 0 <= value <= greatest:
                return f"{name} is {value}: it must be in [0, {greatest}]"
        if not 0 <= self.neighbours <= MAX_NEIGHBOURS:
            return f"expansion.neighbours is {self.neighbours}: it must be 0 to {MAX_NEIGHBOURS}"
        if len(self.filter) > MAX_EXPRESSION_CHARS:
            return f"filter has {len(self.filter)} characters: at most {MAX_EXPRESSION_CHARS} are taken"
        return ""


class ScoreFusion(StrEnum):
    """A method of fusing the scores of several scorers."""

    WEIGHTED = "weighted"
    RECIPROCAL_RANK = "reciprocal_rank"


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer of the rerank service with its weight and its model.

    An empty `model` selects the model configured in the rerank service.
    """

    scorer: str
    weight: float | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class RankingOptions:
    """The options of a ranking: fused scorers, and the diversity of the kept chunks.

    An option of 0 is unset.
    """

    scorers: tuple[WeightedScorer, ...] = ()
    fusion: ScoreFusion = ScoreFusion.WEIGHTED
    diversity: float = 0.0
    max_per_source: int = 0


@dataclass(frozen=True, slots=True)
class QueryExpansion:
    """The additional queries that the model writes: alternative wordings, and a document that answers the question.

    An empty `model` selects the model of the request.
    """

    queries: int = 0
    has_hypothetical_document: bool = False
    model: str = ""

    @property
    def objection(self) -> str:
        """The invalid field and the reason that it is invalid, or an empty string if the expansion is valid."""
        if not 0 <= self.queries <= MAX_WRITTEN_QUERIES:
            return f"query_expansion.queries is {self.queries}: it must be 0 to {MAX_WRITTEN_QUERIES}"
        return ""


@dataclass(frozen=True, slots=True)
class Answerability:
    """The minimum probability that the chunks contain the answer, and the model that estimates the probability.

    An empty `model` selects the model of the request.
    """

    min_probability: float = 0.0
    slope: float = 1.0
    intercept: float = 0.0
    model: str = ""

    @property
    def calibration(self) -> Calibration:
        """The linear map from the model's log-odds to the log-odds of the probability."""
        return Calibration(self.slope, self.intercept)

    @property
    def objection(self) -> str:
        """The invalid field and the reason that it is invalid, or an empty string if all fields are valid."""
        if not 0 <= self.min_probability <= 1:
            return f"answerability.min_probability is {self.min_probability}: it must be in [0, 1]"
        for name, value in (("slope", self.slope), ("intercept", self.intercept)):
            if not abs(value) <= MAX_SCALING:
                return f"answerability.{name} is {value}: it must be between -{MAX_SCALING:g} and {MAX_SCALING:g}"
        return ""


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """The context to retrieve. An empty collection, 0 and None mean that a setting is unset."""

    retriever: Retriever
    collection: str
    max_chunks: int = 0
    min_score: float | None = None
    search: SearchOptions = SearchOptions()
    is_after_system: bool = False
    scorer: str | None = None
    top_k: int = 0
    ranking: RankingOptions = RankingOptions()
    max_tokens: int = 0
    includes_tools: bool = False
    includes_schema: bool = False
    is_required: bool = False
    is_system: bool = False
    query_expansion: QueryExpansion | None = None
    answerability: Answerability | None = None

    @property
    def objection(self) -> str:
        """The invalid field and the reason that it is invalid, or an empty string if the policy is valid."""
        expansion, answerability = self.query_expansion or QueryExpansion(), self.answerability or Answerability()
        if expansion.has_hypothetical_document and self.retriever not in _EMBEDDING_RETRIEVERS:
            return (
                "query_expansion.hypothetical_document is searched by its embedding: set retriever to RETRIEVER_VECTOR "
                "or RETRIEVER_HYBRID"
            )
        return self.search.objection or expansion.objection or answerability.objection

    @property
    def role(self) -> Role:
        """The role of the context message."""
        if self.is_system:
            return Role.SYSTEM
        return Role.USER
