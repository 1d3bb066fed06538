"""Builds, starts, monitors and stops the services on a single machine."""
