"""Embeddings and scores of pairs beside the same weights in onnxruntime."""
