"""Names the concrete classes of the inference service; import it after the environment of llama.cpp is set."""
