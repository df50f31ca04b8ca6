"""Writes `ui/src/api/schema.ts`, the TypeScript types of the API, from the server's OpenAPI document.

Run `python ui/generate_schema.py` after changing a model or a route; `tests/server/test_schema.py` fails while the file
is out of date. Two things make this simpler than a general-purpose generator: the server always sends every field of a
response, so no field is optional, and the only schemas it makes are those that msgspec produces.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tachograph.server._openapi import openapi

OUTPUT = Path(__file__).parent / "src" / "api" / "schema.ts"
PRELUDE = """\
// Generated from the server's OpenAPI document by `python ui/generate_schema.py`. Do not edit.

export type Json = null | boolean | number | string | Json[] | JsonObject;
export type JsonObject = { [key: string]: Json };
/** JSON has no NaN and no infinities: the server sends them as strings. */
export type Num = number | "NaN" | "Infinity" | "-Infinity";
/** A record of the journal: its kind, its time and the fields of its kind. */
export interface JournalRecord {
  event: string;
  time: number;
  [field: string]: Json;
}
"""
NON_FINITE = {"NaN", "Infinity", "-Infinity"}
PRIMITIVES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def generate() -> str:
    """Return the contents of the generated file."""
    document = openapi()
    schemas = document["components"]["schemas"]
    # Queries are left out: each route below lists its own parameters.
    types = [declaration(name, schema) for name, schema in schemas.items() if not name.endswith("Query")]
    routes = [
        route(f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    table = "/** The API's routes, by method and path. */\nexport interface Routes {\n" + "".join(routes) + "}\n"
    return "\n".join([PRELUDE, *types, table])


def declaration(name: str, schema: dict[str, Any]) -> str:
    """Return an interface, or a type alias for an enumeration."""
    lines = comment(schema, "")
    if "properties" not in schema:
        return lines + f"export type {name} = {type_of(schema)};\n"
    lines += f"export interface {name} {{\n"
    for field, field_schema in schema["properties"].items():
        lines += comment(field_schema, "  ") + f"  {field}: {type_of(field_schema)};\n"
    return lines + "}\n"


def comment(schema: dict[str, Any], indent: str) -> str:
    """Return a schema's description as a JSDoc comment."""
    return f"{indent}/** {schema['description']} */\n" if "description" in schema else ""


def type_of(schema: dict[str, Any]) -> str:
    """Return the TypeScript type of a JSON schema."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        options = schema["anyOf"]
        # `number` beside the three strings for non-finite numbers is one type.
        is_number = any(set(option.get("enum", ())) == NON_FINITE for option in options)
        names = [type_of(option) for option in options if set(option.get("enum", ())) != NON_FINITE]
        return " | ".join(dict.fromkeys("Num" if is_number and name == "number" else name for name in names))
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if schema.get("title") == "JournalRecord":
        return "JournalRecord"
    kind = schema.get("type")
    if kind == "array":
        item = type_of(schema.get("items", {}))
        return f"({item})[]" if " " in item else f"{item}[]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"Record<string, {type_of(values)}>" if values else "JsonObject"
    return PRIMITIVES.get(kind or "", "Json")


def route(name: str, operation: dict[str, Any]) -> str:
    """Return one entry of the table of routes."""
    parameters = operation.get("parameters", [])
    path = [f"{item['name']}: string" for item in parameters if item["in"] == "path"]
    query = [
        f"{item['name']}: {type_of(item['schema'])}"
        if item["required"]
        else f"{item['name']}?: {type_of(item['schema'])} | null"
        for item in parameters
        if item["in"] == "query"
    ]
    body = operation.get("requestBody")
    [response] = (answer for status, answer in operation["responses"].items() if status != "default")
    parts = {
        "path": f"{{ {'; '.join(path)} }}" if path else "{}",
        "query": f"{{ {'; '.join(query)} }}" if query else "{}",
        "body": json_type(body["content"]) if body else "null",
        "response": json_type(response.get("content", {})),
    }
    fields = "".join(f"    {part}: {text};\n" for part, text in parts.items())
    return f"  /** {operation['summary']} */\n  {json.dumps(name)}: {{\n{fields}  }};\n"


def json_type(content: dict[str, Any]) -> str:
    """Return the type of a JSON body; `null` for an empty one or a file."""
    return type_of(content["application/json"]["schema"]) if "application/json" in content else "null"


if __name__ == "__main__":
    OUTPUT.write_text(generate(), encoding="utf-8")
