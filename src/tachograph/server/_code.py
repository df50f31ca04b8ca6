"""The captured code of runs: how two runs differ, and the patch of one."""

from __future__ import annotations

from starlette.responses import Response

from tachograph.catalog import ComparedRun, RunComparison, compare_runs
from tachograph.exceptions import CodeError
from tachograph.reader.captured_code import last_code, read_patch
from tachograph.records import mark_non_finite
from tachograph.server._errors import ApiError
from tachograph.store import StoredRun

__all__ = ["build_comparison", "download_patch"]


def build_comparison(first: StoredRun, second: StoredRun) -> RunComparison:
    """Return how two runs differ."""
    found = compare_runs(_take(first), _take(second))
    for part in (found.config, found.git, found.packages, found.environment):
        for each in part:
            each.first, each.second = mark_non_finite([each.first, each.second])
    return found


def _take(run: StoredRun) -> ComparedRun:
    with run.lock:
        return ComparedRun.of(run.digest)


def download_patch(run: StoredRun) -> Response:
    """Return the uncommitted changes of a run as a file."""
    with run.lock:
        code = last_code(run.digest)
    try:
        patch = read_patch(run.folder, code)
    except CodeError as error:
        raise ApiError(404, "no_patch", str(error)) from error
    if not patch:
        raise ApiError(404, "no_patch", "this run has no uncommitted changes, or they were not captured")
    return Response(patch, 200, {"Content-Disposition": 'attachment; filename="changes.patch"'}, "text/x-diff")
