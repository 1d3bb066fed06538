"""Composes the service from settings, adapters, app and server, in this order.

Read `service.py` first. `server.py` and `remote_models.py` never load llama.cpp. Import the other modules only after
the environment of llama.cpp is set.
"""
