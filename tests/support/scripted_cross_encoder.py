"""A cross-encoder that counts the bytes that query and text share."""

import numpy as np

from pagantic_common.domain.messages import ModelInfo
from pagantic_common.testing.scripted_embedder import BEGIN_TOKEN, END_TOKEN, ScriptedEmbedder
from services.inference.core.pairs import PairLayout


class ScriptedCrossEncoder(ScriptedEmbedder):
    """Scores the distinct bytes of a text: 1 for each that the query has, and -1 for each other one."""

    pair_layout = PairLayout((BEGIN_TOKEN,), (END_TOKEN,), (END_TOKEN,))

    def __init__(self, **options):
        super().__init__(**options)
        self.model = ModelInfo("pairs", self.model.context_window, ("score_pairs",))

    def embed(self, texts):
        super().embed(texts)  # refuses a batch that a real model could not compute
        return np.array([[self._score(list(tokens))] for tokens in texts], dtype=np.float32)

    def _score(self, tokens):
        middle = tokens.index(END_TOKEN)
        query, text = set(tokens[:middle]), set(tokens[middle:]) - {END_TOKEN}
        return len(text & query) - len(text - query)
