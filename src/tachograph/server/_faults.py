"""The one shape of every answer that is not a success."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from tachograph.server._models import ErrorBody, Fault

__all__ = ["ApiError", "fault_response"]


class ApiError(Exception):
    """A request that cannot be answered."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}


def fault_response(error: ApiError) -> Response:
    """Return the answer."""
    body = msgspec.json.encode(ErrorBody(Fault(error.code, error.message)))
    return Response(body, error.status, {"Cache-Control": "no-store", **error.headers}, "application/json")
