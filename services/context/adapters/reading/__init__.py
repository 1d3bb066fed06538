"""Stores received files temporarily, and reads them in worker processes with the libraries for their formats."""
