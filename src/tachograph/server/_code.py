"""The captured code of runs: how two runs differ, and the patch of one."""

from __future__ import annotations

from starlette.responses import Response

from tachograph.catalog import CapturedRun, RunPairDiff, diff_pair
from tachograph.exceptions import CodeError
from tachograph.reader.captured_code import last_code, read_patch
from tachograph.records import mark_non_finite
from tachograph.server._errors import ApiError
from tachograph.store import StoredRun

__all__ = ["build_pair_diff", "download_patch"]


def build_pair_diff(first: StoredRun, second: StoredRun) -> RunPairDiff:
    """Return how two runs differ."""
    pair_diff = diff_pair(_copy_captured(first), _copy_captured(second))
    for part in (pair_diff.config, pair_diff.git, pair_diff.packages, pair_diff.environment):
        for each in part:
            each.first, each.second = mark_non_finite([each.first, each.second])
    return pair_diff


def _copy_captured(run: StoredRun) -> CapturedRun:
    with run.lock:
        return CapturedRun.of(run.digest)


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
