"""Answers of models that pool texts: the vectors of embedding models, and the relevance that cross-encoders see."""
