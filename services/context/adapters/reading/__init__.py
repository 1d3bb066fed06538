"""Reads files with the libraries of their formats, in worker processes, and keeps them until they are read."""
