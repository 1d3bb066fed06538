"""Says why a server cannot listen."""

from __future__ import annotations


def reason_of(error: OSError) -> str:
    """Return what to tell the operator: of the port that `--port` names, the system's reason; of others, their own."""
    if error.strerror is None:
        return str(error)
    return f"cannot listen: {error.strerror.lower()}: choose another --port"
