"""The routes."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from importlib.metadata import version as version_of
from time import time
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.routing import Route

from ..errors import UserError
from .bodies import Detokenize, Tokenize, show_value
from .errors import MAX_SHOWN, APIError
from .live import STREAM, add_page, page_files
from .middleware import JsonResponse, RequestGuard, RequestLog, error_response, facts_of, note_error
from .service import Service

# The names of a union's members, which are parts of the place of an error in it.
KIND = re.compile(r"[A-Z]|.*\[|constrained-|(str|int|bool|float)$")
VERSION = version_of("draftwise")


def make_app(
    service: Service, *, key: str = "", hosts: Collection[str] = (), origins: Collection[str] = ()
) -> RequestLog:
    """Return the ASGI application: its start starts the engine, its end stops it.

    With a `key` all routes but `/health`, `/ready` and the files of the live page need it. Only pages of
    `origins` may call it from a browser, and only by one of `hosts`, if any are given.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.engine.thread.start()
        try:
            yield
        finally:
            service.engine.stop(seconds=0)
            await asyncio.to_thread(service.engine.thread.join)
            service.close()

    app = FastAPI(title="Draftwise", version=VERSION, lifespan=lifespan, docs_url=None, redoc_url=None)
    origins = [origin.rstrip("/") for origin in origins]  # as browsers name them
    _add_errors(app)
    _add_generation(app, service)
    _add_status(app, service)
    add_page(app, service, origins)
    for route in list(app.routes):
        # Load balancers and crawlers ask for what `GET` answers, without its body.
        if isinstance(route, APIRoute) and route.methods == {"GET"} and route.path != STREAM:
            app.add_api_route(route.path, route.endpoint, methods=["HEAD"], include_in_schema=False)
    public = {"/health", "/ready", *page_files()}
    app.add_middleware(RequestGuard, key=key, body=service.limits.max_body, public=public, hosts=hosts)
    if origins:
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    return RequestLog(app, service.metrics, {route.path for route in app.routes if isinstance(route, Route)})


def _add_generation(app: FastAPI, service: Service) -> None:
    parser, window = service.parser, service.parser.window
    card = {"id": service.model, "object": "model", "created": int(time()), "owned_by": "draftwise"}
    card |= {"root": service.model, "max_model_len": window}

    app.post("/v1/completions")(service.completions)
    app.post("/v1/chat/completions")(service.chat)
    app.post("/v1/responses")(service.responses)

    @app.get("/v1/models")
    async def models() -> Response:
        return JsonResponse({"object": "list", "data": [card]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        service.check_model(name)
        return JsonResponse(card)

    @app.post("/tokenize")
    async def tokenize(body: Tokenize) -> Response:
        service.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise APIError("give a prompt or messages, and not both", param="prompt")
        ids = await service.read(parser.tokenize, body)
        answer = {"count": len(ids), "max_model_len": window, "tokens": ids}
        if body.return_token_strs:
            answer["token_strs"] = await service.read(list, map(parser.token_texts.text, ids))
        return JsonResponse(answer)

    @app.post("/detokenize")
    async def detokenize(body: Detokenize) -> Response:
        service.check_model(body.model)
        text = await service.read(parser.detokenize, body.tokens) if body.tokens else ""
        return JsonResponse({"prompt": text})


def _add_status(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        alive = service.engine.thread.is_alive()
        return JsonResponse({"status": "ok" if alive else "the engine has ended"}, 200 if alive else 500)

    @app.get("/ready")
    async def ready() -> Response:
        is_ready = service.engine.is_ready
        return JsonResponse({"status": "ready" if is_ready else "stopping"}, 200 if is_ready else 503)

    @app.get("/version")
    async def version() -> Response:
        return JsonResponse({"version": VERSION})

    @app.get("/metrics")
    async def metrics() -> Response:
        page = generate_latest(service.metrics.registry)
        return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_errors(app: FastAPI) -> None:
    """Give every error the shape of OpenAI's."""

    async def answer(request: Request, error: Exception) -> Response:
        refusal = _to_api_error(request, error)
        note_error(facts_of(request.scope), refusal)
        return error_response(refusal)

    for kind in (APIError, UserError, RequestValidationError, HTTPException, RecursionError, Exception):
        app.add_exception_handler(kind, answer)


def _to_api_error(request: Request, error: Exception) -> APIError:
    if isinstance(error, APIError):
        return error
    if isinstance(error, UserError):
        return APIError(str(error))
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, RecursionError):
        return APIError(_unreadable(error))
    if not isinstance(error, HTTPException):
        return APIError("the server made a mistake: its log has more", 500)
    messages = {
        404: f"no such address {request.url.path[:MAX_SHOWN]!r}",
        405: f"no {request.method} there",
    }
    if isinstance(error.__cause__, (ValueError, RecursionError)):
        messages[400] = _unreadable(error.__cause__)
    message = messages.get(error.status_code, str(error.detail))
    return APIError(message, error.status_code, headers=error.headers)


def _unreadable(error: ValueError | RecursionError) -> str:
    """Return why a body that may be JSON cannot be read."""
    if isinstance(error, RecursionError):
        return "the body is nested too deeply: send fewer levels"
    if isinstance(error, UnicodeError):
        return "the body is not UTF-8: repair its encoding"
    return f"the body has a number of more than {sys.get_int_max_str_digits()} digits: give a shorter one"


def _invalid(error: RequestValidationError) -> APIError:
    """Return the first thing that is wrong with a body, in one line."""
    first = max(error.errors(), key=_depth)  # of a union, what came closest
    place = [str(part) for part in first["loc"][1:] if not KIND.match(str(part))]
    name, param = ".".join(place) or "the body", place[0] if place else None
    if first["type"] == "json_invalid":
        message = f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}"
        return APIError(message, code="invalid_json")
    if first["loc"] == ("body",) and isinstance(first.get("input"), bytes):
        message = "the body is not sent as JSON: send it as Content-Type: application/json"
        return APIError(message, code="invalid_content_type")
    if first["type"] == "extra_forbidden":
        above = [str(part) for part in first["loc"][1:-1] if not KIND.match(str(part))]
        name = ".".join([*above, str(first["loc"][-1])])  # which may look like a kind
        message = f"the field {name[:MAX_SHOWN]!r} is not known here: leave it out"
        return APIError(message, code="unknown_parameter", param=param)
    if first["type"] == "missing":
        return APIError(f"{name} is missing: give it", code="missing_required_parameter", param=param)
    reason = first["msg"].removeprefix("Value error, ")
    reason = reason if reason[1:2].isupper() else reason[:1].lower() + reason[1:]
    message = f"{name[:MAX_SHOWN]}={show_value(first.get('input'))}: {reason}"
    return APIError(message, code="invalid_value", param=param)


def _depth(error: dict[str, Any]) -> tuple[int, list[int], bool]:
    """Return how far a reading came: its depth, the items of lists passed, and whether the type was right."""
    place = error["loc"]
    items = [part for part in place if isinstance(part, int)]
    return len(place), items, not error["type"].endswith("_type")
