"""Reads files in worker processes with the libraries for their formats, and stores them until they are read."""
