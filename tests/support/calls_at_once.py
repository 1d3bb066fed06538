"""Counts calls of a method that run at once."""

from types import SimpleNamespace


def counting_calls(monkeypatch, owner, name):
    """Count the calls of an asynchronous method; returns their number now, and the largest so far."""
    calls = SimpleNamespace(running=0, largest=0)
    method = getattr(owner, name)

    async def counted(*args, **options):
        calls.running += 1
        calls.largest = max(calls.largest, calls.running)
        try:
            return await method(*args, **options)
        finally:
            calls.running -= 1

    monkeypatch.setattr(owner, name, counted)
    return calls
