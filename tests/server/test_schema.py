"""The OpenAPI document, checked against the server and the generated TypeScript types."""

from __future__ import annotations

import hashlib
import math
import runpy
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from tachograph.black_box import DumpWriter, Verdict
from tachograph.journal import RunFolder
from tachograph.reader.captured_code import write_code_file
from tachograph.server._openapi import openapi
from tachograph.server._routes import ROUTES
from tests.conftest import HANG_S
from tests.media_files import histograms, media, store
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
PAGE_CONTENT = b"<p>hello</p>"
PAGE = hashlib.sha256(PAGE_CONTENT).hexdigest()
EXCLUDED_CHECKS = [
    checks.ignored_auth,  # a local server requires no token; test_security.py covers one that does
    checks.use_after_free,  # test_table.py covers what can be deleted …
    checks.ensure_resource_availability,  # … and created
    checks.unsupported_method,  # covered by test_api.py
]


@pytest.fixture(params=[4, pytest.param(15, marks=pytest.mark.long)])
def few(request):
    return settings(max_examples=request.param, suppress_health_check=list(HealthCheck), derandomize=True)


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
    write(logs / "r", [])
    patch = write_code_file(RunFolder(logs / "r"), b"diff --git a/x b/x\n", ".patch")
    code = {"event": "code", "time": 1_001.0, "diff": {"file": patch, "num_files": 1}}
    page = media("page", "html", 1, store(logs / "r", PAGE_CONTENT, "html"))
    weights = histograms(1, weights={"edges": [0, 1], "counts": [1], "n": 1})
    write(logs / "r", [{**START, "config": {"lr": math.inf}}, code, knob, *records, SPAN, ALERT, page, weights, END])
    DumpWriter(lambda: RunFolder(logs / "r"), lambda *_: None).write("hang", verdict=Verdict(kind="k", text="t"))
    (logs / "r" / "traces").mkdir()
    (logs / "r" / "traces" / TRACE).write_bytes(b"\x1f\x8b")
    write(logs / "waiting", [START, knob, *records])  # no exit record: it accepts control requests
    server = Served(logs)
    yield server.url
    server.close()


# Not `schema.parametrize()`: all its tests have the same id, and pytest-xdist would run only one of them.
OPERATIONS = [
    found.ok()
    for found in schemathesis.openapi.from_dict(openapi()).get_all_operations()
    if found.ok().path != "/api/v1/live"  # an endless stream; covered by test_live.py
]
RUN_OPERATIONS = [operation for operation in OPERATIONS if "{run}" in operation.path]


GOOD, BAD = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
# A request without query and body cannot be invalid, because any text is valid in a path.
CASES = [(GOOD, item) for item in OPERATIONS] + [(BAD, item) for item in OPERATIONS if len(item.body) + len(item.query)]


@pytest.mark.parametrize(("mode", "operation"), CASES, ids=lambda part: getattr(part, "label", str(part)))
def test_responses_match_openapi_document(url, operation, mode, few):
    @few
    @given(operation.as_strategy(generation_mode=mode))
    def check(case):
        answer = case.call(base_url=url, timeout=HANG_S)
        # A body that is too large is rejected before it is parsed, valid or not.
        unparsed = [checks.negative_data_rejection, checks.positive_data_acceptance]
        excluded = [*EXCLUDED_CHECKS, *unparsed] if answer.status_code == 413 else EXCLUDED_CHECKS
        case.validate_response(answer, excluded_checks=excluded)

    check()


@pytest.mark.parametrize("operation", RUN_OPERATIONS, ids=lambda operation: operation.label)
def test_responses_of_existing_run_match_document(url, operation, few):
    @few
    @given(operation.as_strategy(generation_mode=GOOD))
    def check(case):
        case.path_parameters["run"] = "waiting" if case.method == "POST" else "r"
        if "span" in case.path_parameters:
            case.path_parameters["span"] = SPAN["span_id"]
        if "other" in case.path_parameters:
            case.path_parameters["other"] = "waiting"
        if "trace" in case.path_parameters:
            case.path_parameters["trace"] = TRACE
        if "dump" in case.path_parameters:
            case.path_parameters["dump"] = "1-hang"
            case.query.pop("rank", None)
        if "sha256" in case.path_parameters:
            case.path_parameters["sha256"] = PAGE
            case.query.pop("size", None)  # it is no picture
        if case.path.endswith("/histograms"):
            case.query["name"] = "weights"
        answer = case.call_and_validate(base_url=url, excluded_checks=EXCLUDED_CHECKS, timeout=HANG_S)
        assert answer.status_code != 404 or "export" in case.path  # no such metric

    check()


def test_document_lists_every_route(shared_client):
    document = shared_client.get("/api/v1/openapi.json").json()
    assert document == openapi()
    named = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert named == {(route.method, route.path) for route in ROUTES} | {
        ("GET", "/api/v1/live"),
        ("GET", "/api/v1/login"),
        ("POST", "/api/v1/login"),
        ("POST", "/api/v1/logout"),
    }
    assert document["openapi"].startswith("3.1")
    operations = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(operations) == len(set(operations))


def test_operations_declare_token_security(shared_client):
    document = shared_client.get("/api/v1/openapi.json").json()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            asks = operation.get("security", document.get("security", []))
            assert bool(asks) is (path.startswith("/api/") and path not in {"/api/v1/login", "/api/v1/logout"}), path


def test_operations_declare_error_response(shared_client):
    document = shared_client.get("/api/v1/openapi.json").json()
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
