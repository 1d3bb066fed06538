"""Gives each caller the events of its request, and records how long they took."""
