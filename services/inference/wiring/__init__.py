"""Composes the service: settings -> adapters -> app -> server.

Read `service.py` first. `server.py` and `remote_models.py` never load llama.cpp; import the other modules only after
the environment of llama.cpp is set.
"""
