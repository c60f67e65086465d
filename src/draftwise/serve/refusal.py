"""Errors in the shape of the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError, one_line

LONGEST = 400  # characters of a message, which may quote what a client sent
SHOWN = 60  # characters of a value or the name of a field in it
FINAL = {"x-should-retry": "false"}  # the official client sends nothing again then


class Refusal(Exception):
    """A request that is not answered: its status, and what to tell the client in one line."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        half = LONGEST // 2
        self.message = message if len(message) <= LONGEST else f"{message[:half]} ... {message[-half:]}"
        super().__init__(self.message)
        self.status, self.code, self.param = status, code, None if param is None else param[:SHOWN]
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        error = {"message": self.message, "type": kind(self.status), "param": self.param, "code": self.code}
        return {"error": error}


def kind(status: int) -> str:
    """The type of an error by its status."""
    named = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return named.get(status, "server_error" if status >= 500 else "invalid_request_error")


def stopping() -> Refusal:
    """The server is about to stop."""
    return Refusal("the server is stopping: send the request again later", 503, code="server_stopping")


def too_late(seconds: float) -> Refusal:
    """A text that was not finished in time."""
    said = f"the answer took more than {seconds:g} seconds: ask for fewer tokens, or set another --timeout"
    return Refusal(said, 504, code="timeout", headers=FINAL)


def failed(error: str) -> Refusal:
    """A text that could not be written."""
    return Refusal(f"the text could not be written ({error})", 500, code="generation_failed", headers=FINAL)


def reason(error: Exception | None) -> Refusal:
    """What to tell a client whose text failed."""
    if isinstance(error, UserError):
        return Refusal(str(error), 400)
    return failed(one_line(error) if error is not None else "unknown")
