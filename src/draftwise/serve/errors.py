"""Errors in the shape of the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError, one_line

MAX_MESSAGE = 400  # characters of a message, which may quote what a client sent
MAX_SHOWN = 60  # characters of a value or the name of a field in it
NO_RETRY = {"x-should-retry": "false"}  # the official client sends nothing again then
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class APIError(Exception):
    """A request that is not answered: its status, and a message for the client in one line."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        half = MAX_MESSAGE // 2
        self.message = message if len(message) <= MAX_MESSAGE else f"{message[:half]} ... {message[-half:]}"
        super().__init__(self.message)
        self.status, self.code, self.param = status, code, None if param is None else param[:MAX_SHOWN]
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def server_stopping() -> APIError:
    return APIError("the server is stopping: send the request again later", 503, code="server_stopping")


def timed_out(seconds: float) -> APIError:
    message = f"the answer took more than {seconds:g} seconds: ask for fewer tokens, or set another --timeout"
    return APIError(message, 504, code="timeout", headers=NO_RETRY)


def generation_failed(error: Exception | None, *, is_users: bool = True) -> APIError:
    """Return the error of a text that could not be written; a `UserError` may be the client's own."""
    if is_users and isinstance(error, UserError):
        return APIError(str(error), 400)
    reason = one_line(error) if error is not None else "unknown"
    message = f"the text could not be written ({reason})"
    return APIError(message, 500, code="generation_failed", headers=NO_RETRY)
