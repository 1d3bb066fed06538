"""Streams of answers: their blocks, the ids of their events, and how they are sent."""
