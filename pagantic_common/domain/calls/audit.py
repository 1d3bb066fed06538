"""Audit records in a hash chain, which reveals later changes, removals and insertions.

Each record's digest covers the record's fields and the digest of the previous record, as in S. Haber and W. S.
Stornetta, "How to time-stamp a digital document", 1991. With a secret key, the digest is an HMAC (RFC 2104), which
cannot be computed from the database alone.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

START = bytes(32)  # predecessor digest of a chain's first record


class Decision(StrEnum):
    """Whether a call was admitted."""

    ALLOWED = "allowed"
    DENIED = "denied"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """The method, resource and decision of a call, but never its content.

    Attributes:
        at_us: The time, in microseconds since 1970.
        tenant: The caller's tenant, or an empty string if the caller is unknown.
        subject: The caller's name.
        kind: The caller's authentication method.
        key_id: The id of the call's API key, or an empty string if the call has no key.
        method: The method as "Service/Method", without its package.
        resource: The resource, such as "session talk", or an empty string if the method implies it.
        request_id: The id of the request, or an empty string if the call has no request.
        decision: Whether the call was admitted: a Decision, kept in its stored form so that a change is detected.
        code: The error code of a denial.
    """

    at_us: int
    tenant: str
    subject: str
    kind: str
    key_id: str
    method: str
    resource: str
    request_id: str
    decision: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A record in the audit chain of an orchestrator.

    Attributes:
        owner: The orchestrator that owns the chain.
        position: The record's number in the chain, counted from 1.
        entry: The audited call.
        previous: The digest of the previous record.
        digest: The digest of this record.
    """

    owner: str
    position: int
    entry: AuditEntry
    previous: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class Problem:
    """A position in a chain at which a record does not fit."""

    owner: str
    position: int
    what: str


def follow(owner: str, position: int, previous: bytes, entry: AuditEntry, key: bytes = b"") -> AuditRecord:
    """Return the record that follows the record with the digest `previous`."""
    return AuditRecord(owner, position, entry, previous, digest_of(owner, position, previous, entry, key))


def digest_of(owner: str, position: int, previous: bytes, entry: AuditEntry, key: bytes = b"") -> bytes:
    """Return the digest of a record: SHA-256, keyed if `key` is not empty."""
    fields = [
        *(owner, position, entry.at_us, entry.tenant, entry.subject, entry.kind, entry.key_id, entry.method),
        *(entry.resource, entry.request_id, entry.decision, entry.code),
    ]
    return hmac.digest(key, previous + json.dumps(fields, separators=(",", ":")).encode(), "sha256")


def find_problems(records: Iterable[AuditRecord], key: bytes = b"") -> Iterator[Problem]:
    """Yield the defects of chains. `records` are sorted by owner and position, and a chain may begin at any record."""
    last: AuditRecord | None = None
    for record in records:
        if last is None or record.owner != last.owner:
            last = None
        yield from _problems_of(record, last, key)
        last = record


def _problems_of(record: AuditRecord, last: AuditRecord | None, key: bytes) -> Iterator[Problem]:
    expected = record.position if last is None else last.position + 1
    if record.position != expected:
        yield Problem(record.owner, expected, f"is missing: {record.position} comes next")
    elif last is not None and record.previous != last.digest:
        yield Problem(record.owner, record.position, "does not follow the record before it")
    elif record.position == 1 and record.previous != START:
        yield Problem(record.owner, record.position, "is not the beginning of a chain")
    if record.digest != digest_of(record.owner, record.position, record.previous, record.entry, key):
        yield Problem(record.owner, record.position, "was changed")
