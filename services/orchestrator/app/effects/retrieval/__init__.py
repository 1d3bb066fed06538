"""Retrieves the context of a run, with model-written queries, and estimates whether the chunks have the answer."""
