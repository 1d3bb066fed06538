"""Builds, starts, watches and stops the services on a single machine."""
