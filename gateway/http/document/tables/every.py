"""The operations of every path."""

from __future__ import annotations

from gateway.http.document.operations import Operations
from gateway.http.document.tables.judging import JUDGING_OPERATIONS
from gateway.http.document.tables.native import NATIVE_OPERATIONS
from gateway.http.document.tables.openai import OPENAI_OPERATIONS
from gateway.http.document.tables.operating import OPERATING_OPERATIONS
from gateway.http.document.tables.others import OTHER_OPERATIONS
from gateway.http.document.tables.responses import RESPONSE_OPERATIONS

OPERATIONS: Operations = {
    **OPENAI_OPERATIONS,
    **JUDGING_OPERATIONS,
    **RESPONSE_OPERATIONS,
    **OTHER_OPERATIONS,
    **NATIVE_OPERATIONS,
    **OPERATING_OPERATIONS,
}
