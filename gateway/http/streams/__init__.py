"""Streams of answers: their blocks, the ids of their events, and the sending of their events."""
