"""The OpenAPI document against the server that serves it."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from tachograph.server._openapi import openapi
from tachograph.server._routes import ROUTES
from tests.server.conftest import Served
from tests.store import END, START, step, write

UI = Path(__file__).parents[2] / "ui"
SPAN = {"event": "span", "time": 1_050.0, "span_id": "00000000000000aa", "name": "load", "duration_s": 2.0}
ALERT = {
    "event": "alert",
    "time": 1_050.0,
    "global_step": 50,
    "id": "1",
    "rule": "loss_spike",
    "status": "opened",
    "severity": "odd",
    "evidence": {"value": math.nan},
    "occurrence": {"step": 50},
}
TRACE = "step-000001-1.json.gz"
LEFT_OUT = [
    checks.ignored_auth,  # a server on this machine asks for no token; see test_security.py for one that does
    checks.use_after_free,  # nothing can be deleted
    checks.ensure_resource_availability,  # nothing can be created
    checks.unsupported_method,  # in test_api.py, one method at a time
]
FEW = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    logs = tmp_path_factory.mktemp("schema")
    records = [step(i, loss=math.nan if i % 9 == 0 else 1 / (i + 1), epoch=i / 10) for i in range(300)]
    knob = {
        "event": "event",
        "time": 1_001.0,
        "name": "control_registered",
        "control": "scale",
        "value": 1.0,
        "min": 0,
        "max": 2,
    }
    write(logs / "r", [{**START, "config": {"lr": math.inf}}, knob, *records, SPAN, ALERT, END])
    (logs / "r" / "traces").mkdir()
    (logs / "r" / "traces" / TRACE).write_bytes(b"\x1f\x8b")
    write(logs / "waiting", [START, knob, *records])  # nobody writes it, but somebody might: it can be asked
    server = Served(logs)
    yield server.url
    server.close()


# Not `schema.parametrize()`: its tests all bear the same name, and pytest-xdist would run only one of them.
OPERATIONS = [
    found.ok()
    for found in schemathesis.openapi.from_dict(openapi()).get_all_operations()
    if found.ok().path != "/api/v1/live"  # it streams for ever; test_live.py has it
]
ABOUT_A_RUN = [operation for operation in OPERATIONS if "{run}" in operation.path]


GOOD, BAD = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
# Of a request without query and body nothing can be wrong but the names in its path, and those are any texts.
CASES = [(GOOD, item) for item in OPERATIONS] + [(BAD, item) for item in OPERATIONS if len(item.body) + len(item.query)]


@pytest.mark.parametrize(("mode", "operation"), CASES, ids=lambda part: getattr(part, "label", str(part)))
def test_every_answer_is_as_the_document_says(url, operation, mode):
    @FEW
    @given(operation.as_strategy(generation_mode=mode))
    def check(case):
        case.call_and_validate(base_url=url, excluded_checks=LEFT_OUT, timeout=10)

    check()


@pytest.mark.parametrize("operation", ABOUT_A_RUN, ids=lambda operation: operation.label)
def test_every_answer_about_a_run_that_is_there_is_as_the_document_says(url, operation):
    @FEW
    @given(operation.as_strategy(generation_mode=GOOD))
    def check(case):
        case.path_parameters["run"] = "waiting" if case.method == "POST" else "r"
        if "span" in case.path_parameters:
            case.path_parameters["span"] = SPAN["span_id"]
        if "trace" in case.path_parameters:
            case.path_parameters["trace"] = TRACE
        answer = case.call_and_validate(base_url=url, excluded_checks=LEFT_OUT, timeout=10)
        assert answer.status_code != 404 or "export" in case.path  # no such metric

    check()


def test_the_document_names_every_route(steady):
    document = steady.get("/api/v1/openapi.json").json()
    assert document == openapi()
    named = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert named == {(route.method, route.path) for route in ROUTES} | {
        ("GET", "/api/v1/live"),
        ("POST", "/api/v1/login"),
    }
    assert document["openapi"].startswith("3.1")
    operations = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(operations) == len(set(operations))


def test_every_operation_says_that_it_may_need_the_token(steady):
    document = steady.get("/api/v1/openapi.json").json()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            asks = operation.get("security", document.get("security", []))
            assert bool(asks) is (path.startswith("/api/") and path != "/api/v1/login"), path


def test_every_operation_says_what_a_fault_looks_like(steady):
    document = steady.get("/api/v1/openapi.json").json()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert "default" in operation["responses"], path


def test_typescript_types_are_current():
    generator = runpy.run_path(str(UI / "generate_schema.py"))
    text = generator["OUTPUT"].read_text(encoding="utf-8")
    assert text == generator["generate"](), "schema.ts is out of date: run `python ui/generate_schema.py`"


def test_field_docstrings_are_in_the_document():
    schemas = openapi()["components"]["schemas"]
    assert schemas["RunDetail"]["properties"]["indexed"]["description"].startswith("Fraction of the journal")
    assert schemas["RunDetail"]["properties"]["eta_s"] == {  # inherited from RunSummary
        "anyOf": [{"type": "number"}, {"type": "null"}],
        "default": None,
        "description": "Estimated seconds until the last step.",
    }
