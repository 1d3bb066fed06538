"""Streams answers: tracks their blocks, assigns ids to their events, and sends the events."""
