"""The files of the live page, as they lie in the package."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

KINDS = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# No script, style, picture or address but the server's own, nothing inline, and no frame around the page.
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@cache
def page_files() -> dict[str, tuple[str, bytes]]:
    """Kind and bytes of each file by its address; nothing else is ever read for a client."""
    found = {}
    for file in (files(__package__) / "page").iterdir():
        kind = KINDS.get(file.name.rpartition(".")[2])
        if kind is not None:
            address = "/" if file.name == "index.html" else f"/page/{file.name}"
            found[address] = (kind, file.read_bytes())
    return found
