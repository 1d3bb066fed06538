"""Refusals of the HTTP transport: a status and a JSON-RPC error with a remedy."""

from __future__ import annotations

from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR
from starlette.responses import JSONResponse

from gateway.web import refusal as web
from gateway.web.refusal import RETRY_AFTER_S
from pagantic_common.domain.errors import InvalidRequest, PaganticError, Unauthenticated

_UNAUTHORIZED = 401
_OVERLOADED = 503
_FIRST_SERVER_STATUS = 500
_STATUS_OF_CLASS = ((Unauthenticated, _UNAUTHORIZED), (InvalidRequest, 400))


class Refusal(web.Refusal):
    """A refusal of a request before the protocol handles it.

    Args:
    status: The HTTP status.
    message: The error and a remedy.
    code: The code of the JSON-RPC error. It is INTERNAL_ERROR if the status is a server error.
    """

    def __init__(self, status: int, message: str, code: int = INVALID_REQUEST) -> None:
        super().__init__(status, message)
        self.code = code
        if status >= _FIRST_SERVER_STATUS:
            self.code = INTERNAL_ERROR

    @classmethod
    def of(cls, refusal: web.Refusal | PaganticError) -> Refusal:
        """Return a refusal, or the error of a request that the server did not begin, in the form of the protocol."""
        if isinstance(refusal, cls):
            return refusal
        if isinstance(refusal, web.Refusal):
            return cls(refusal.status, refusal.message)
        status = next((status for kind, status in _STATUS_OF_CLASS if isinstance(refusal, kind)), _OVERLOADED)
        return cls(status, str(refusal))

    def response(self) -> JSONResponse:
        """Return the refusal as a response."""
        headers: dict[str, str] = {}
        if self.status == _UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status == _OVERLOADED:
            headers["Retry-After"] = str(RETRY_AFTER_S)
        body = {"jsonrpc": "2.0", "id": None, "error": {"code": self.code, "message": self.message}}
        return JSONResponse(body, status_code=self.status, headers=headers)


def not_json(reason: str) -> Refusal:
    """Return the refusal for a body that is not JSON."""
    return Refusal(400, f"the body is not JSON: {reason}", PARSE_ERROR)
