"""The OpenAPI document, made of the table of routes."""

from __future__ import annotations

import functools
import re
from typing import Any

import msgspec

from tachograph._version import __version__
from tachograph.server._live import Changed, Gone
from tachograph.server._models import ErrorBody, Login
from tachograph.server._routes import ROUTES, Route

__all__ = ["openapi"]

_REFERENCE = "#/components/schemas/{name}"


@functools.cache
def openapi() -> dict[str, Any]:
    """Return the document."""
    used = [kind for route in ROUTES for kind in (route.answers, route.query, route.body) if kind is not None]
    schemas, components = msgspec.json.schema_components(
        [*used, ErrorBody, Login, Changed, Gone], ref_template=_REFERENCE
    )
    known = dict(zip([*used, ErrorBody, Login, Changed, Gone], schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, known, components)
    paths["/api/v1/live"] = {"get": _live_operation(known)}
    paths["/api/v1/login"] = {"post": _login_operation(known)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tachograph",
            "version": __version__,
            "description": "Training runs: what they recorded, and how to steer them. Numbers that JSON does not have "
            'are the texts "NaN", "Infinity" and "-Infinity".',
        },
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(route: Route, known: dict[type, Any], components: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    if route.query is not None:
        parameters += _query_parameters(components[route.query.__name__])
    if route.answers is not None:
        content = {"application/json": {"schema": known[route.answers]}}
    else:
        content = {kind: {"schema": {"type": "string"}} for kind in route.files}
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{'_'.join(re.findall(r'[a-z]+', route.path.removeprefix('/api/v1')))}",
        "summary": route.summary,
        "parameters": parameters,
        "responses": {str(route.status): {"description": "Done.", "content": content}, "default": _fault(known)},
    }
    if not route.path.startswith("/api/"):
        operation["security"] = []
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": known[route.body]}}}
    return operation


def _query_parameters(schema: dict[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", [])
    parameters = []
    for name, kind in schema["properties"].items():
        plain = {key: value for key, value in kind.items() if key != "description"}
        if "anyOf" in plain:  # what may be left out is never null in a query
            plain = next(option for option in plain["anyOf"] if option.get("type") != "null")
        parameter = {"name": name, "in": "query", "required": name in required, "schema": plain}
        if "description" in kind:
            parameter["description"] = kind["description"]
        parameters.append(parameter)
    return parameters


def _fault(known: dict[type, Any]) -> dict[str, Any]:
    return {
        "description": "What was wrong, and what to do.",
        "content": {"application/json": {"schema": known[ErrorBody]}},
    }


def _live_operation(known: dict[type, Any]) -> dict[str, Any]:
    return {
        "operationId": "get_live",
        "summary": "Tell which runs change, as server-sent events named `changed` (`Changed`) and `gone` (`Gone`).",
        "parameters": [
            {
                "name": "run",
                "in": "query",
                "required": False,
                "description": "A run to watch closely; may be given several times. Without it, all runs.",
                "schema": {"type": "array", "items": {"type": "string"}, "maxItems": 64},
            }
        ],
        "responses": {
            "200": {"description": "Events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
            "default": _fault(known),
        },
    }


def _login_operation(known: dict[type, Any]) -> dict[str, Any]:
    return {
        "operationId": "post_login",
        "summary": "Keep the token in a cookie.",
        "security": [],
        "requestBody": {"required": True, "content": {"application/json": {"schema": known[Login]}}},
        "responses": {"204": {"description": "The cookie is set."}, "default": _fault(known)},
    }
