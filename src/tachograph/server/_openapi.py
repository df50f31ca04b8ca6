"""Builds the OpenAPI document from the route table.

msgspec makes the JSON schemas of the models but leaves out the docstrings under their fields. They are read from the
source here, so that a field is described once, next to its definition.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import sys
from typing import Any

import msgspec

from tachograph._base.version import __version__
from tachograph.server._live import RunChanged, RunGone
from tachograph.server._models import ErrorBody, LoginForm, LoginRequest, LogoutRequest, StreamAlive
from tachograph.server._routes import ROUTES, Route

__all__ = ["openapi"]

_REFERENCE = "#/components/schemas/{name}"


@functools.cache
def openapi() -> dict[str, Any]:
    """Return the document."""
    route_models = [
        model for route in ROUTES for model in (route.response_model, route.query, route.body) if model is not None
    ]
    models = [*route_models, ErrorBody, LoginForm, LoginRequest, LogoutRequest, RunChanged, RunGone, StreamAlive]
    references, schemas = msgspec.json.schema_components(models, ref_template=_REFERENCE)
    for model in _all_models(models):
        _describe_fields(schemas[model.__name__], model)
    reference_by_model = dict(zip(models, references, strict=True))
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, reference_by_model, schemas)
    paths["/api/v1/live"] = {"get": _live_operation(reference_by_model)}
    paths["/api/v1/login"] = {
        "get": _login_form_operation(reference_by_model),
        "post": _session_operation(reference_by_model, LoginRequest, "Exchange the token or access key for a cookie."),
    }
    paths["/api/v1/logout"] = {"post": _session_operation(reference_by_model, LogoutRequest, "Remove the cookie.")}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tachograph",
            "version": __version__,
            "description": "Read the telemetry of training runs and change their controls. Numbers that JSON cannot "
            'represent are the strings "NaN", "Infinity" and "-Infinity".',
        },
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _all_models(models: list[type]) -> set[type]:
    """Return the given structs and all structs that their fields refer to."""
    structs: set[type] = set()
    pending: list[Any] = list(models)
    while pending:
        model = pending.pop()
        if isinstance(model, type) and issubclass(model, msgspec.Struct) and model not in structs:
            structs.add(model)
            pending += [field.type for field in msgspec.structs.fields(model)]
        else:
            pending += getattr(model, "__args__", ())
    return structs


def _describe_fields(schema: dict[str, Any], model: type) -> None:
    """Add the docstrings under a struct's fields to its schema."""
    json_names = {field.name: field.encode_name for field in msgspec.structs.fields(model)}
    for owner in reversed(model.__mro__):
        if not issubclass(owner, msgspec.Struct) or owner is msgspec.Struct:
            continue
        for field, text in itertools.pairwise(_class_bodies(owner.__module__)[owner.__name__]):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(description))):
                    schema["properties"][json_names[name]].setdefault("description", inspect.cleandoc(description))


@functools.cache
def _class_bodies(module_name: str) -> dict[str, list[ast.stmt]]:
    """Return the statements of the classes of a module; `inspect.getsource` would parse it again for each class."""
    tree = ast.parse(inspect.getsource(sys.modules[module_name]))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def _operation(route: Route, references: dict[type, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    if route.query is not None:
        parameters += _query_parameters(schemas[route.query.__name__])
    model = route.response_model
    if model is not None:
        content = {"application/json": {"schema": references[model]}}
    else:
        content = {media_type: {"schema": {"type": "string"}} for media_type in route.media_types}
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{'_'.join(re.findall(r'[a-z]+', route.path.removeprefix('/api/v1')))}",
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            str(route.status): {"description": "Success.", "content": content},
            "default": _error_response(references),
        },
    }
    if not route.path.startswith("/api/"):
        operation["security"] = []
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": references[route.body]}},
        }
    return operation


def _query_parameters(schema: dict[str, Any]) -> list[dict[str, Any]]:
    required_names = schema.get("required", [])
    parameters = []
    for name, field in schema["properties"].items():
        plain = {key: value for key, value in field.items() if key != "description"}
        if "anyOf" in plain:  # an optional parameter is omitted, never null
            plain = next(option for option in plain["anyOf"] if option.get("type") != "null")
        parameter = {"name": name, "in": "query", "required": name in required_names, "schema": plain}
        if "description" in field:
            parameter["description"] = field["description"]
        parameters.append(parameter)
    return parameters


def _error_response(references: dict[type, Any]) -> dict[str, Any]:
    return {
        "description": "The problem and how to fix it.",
        "content": {"application/json": {"schema": references[ErrorBody]}},
    }


def _live_operation(references: dict[type, Any]) -> dict[str, Any]:
    return {
        "operationId": "get_live",
        "summary": "Stream changes as server-sent events named `changed` (`RunChanged`) and `gone` (`RunGone`); "
        "a quiet stream sends `alive` (`StreamAlive`) every few seconds.",
        "parameters": [
            {
                "name": "run",
                "in": "query",
                "required": False,
                "description": "Run to watch; can be repeated. Defaults to all runs, which are checked less often.",
                "schema": {"type": "array", "items": {"type": "string"}, "maxItems": 64},
            },
            {
                "name": "after",
                "in": "query",
                "required": False,
                "description": "The `version` of a list of runs: report only later changes of the list. "
                "Without it, every run is reported at first.",
                "schema": {"type": "string"},
            },
        ],
        "responses": {
            "200": {"description": "Events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
            "default": _error_response(references),
        },
    }


def _login_form_operation(references: dict[type, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": references[LoginForm]}}
    return {
        "operationId": "get_login",
        "summary": "Return what to log in with.",
        "security": [],
        "responses": {"200": {"description": "Success.", "content": content}, "default": _error_response(references)},
    }


def _session_operation(references: dict[type, Any], body: type, summary: str) -> dict[str, Any]:
    return {
        "operationId": "post_login" if body is LoginRequest else "post_logout",
        "summary": summary,
        "security": [],
        "requestBody": {"required": True, "content": {"application/json": {"schema": references[body]}}},
        "responses": {"204": {"description": "The cookie was set or removed."}, "default": _error_response(references)},
    }
