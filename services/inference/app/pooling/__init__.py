"""Models that pool sequences of tokens: embedding models and cross-encoders."""
