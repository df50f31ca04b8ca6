"""The error every failed request returns, and its JSON body."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from tachograph.server._models import ErrorBody, ErrorDetail

__all__ = ["ApiError", "error_response"]


class ApiError(Exception):
    """A request that failed: the HTTP status, a code for programs and a message for people."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}


def error_response(error: ApiError) -> Response:
    """Encode an error as a response that no cache keeps."""
    body = msgspec.json.encode(ErrorBody(ErrorDetail(error.code, error.message)))
    return Response(body, error.status, {"Cache-Control": "no-store", **error.headers}, "application/json")
