"""Builds, starts, watches and stops the services on one machine."""
