"""Free disk space by a policy: which runs, and what to do with them.

A policy is a list of rules, ``{where: EXPR, do: [ACTION, …]}``. All expressions are evaluated before anything is done,
so a rule never sees the effect of an earlier one. Every action on a run is recorded as an annotation. A lock keeps a
second prune of the same log folder out.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tachograph._base.config import parse_yaml
from tachograph._base.files import make_folder, open_lock, read_small
from tachograph._base.typed import convert
from tachograph.catalog._actions import ActionError, Freed, RunAction, parse_action
from tachograph.catalog._annotations import AnnotationError, annotate
from tachograph.catalog._catalog import OWN_FOLDER, Catalog
from tachograph.catalog._ended import why_not_ended
from tachograph.catalog._query import Query, parse_query
from tachograph.catalog._row import RunRow
from tachograph.catalog._syntax import QueryError
from tachograph.exceptions import TachographError
from tachograph.journal import RunFolder, open_journal
from tachograph.records import decode

try:
    import fcntl
except ImportError:  # Windows: nothing keeps a second prune out
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "KEEP_TAG",
    "PruneError",
    "PruneRule",
    "PruneStep",
    "apply_step",
    "make_rule",
    "plan_prune",
    "prune_lock",
    "read_policy",
    "unknown_rule_fields",
]

KEEP_TAG = "keep"
_MAX_POLICY_BYTES = 1 << 20
_MAX_START_BYTES = 8 << 20


class PruneError(TachographError):
    """A policy is invalid, or another prune is running; the message says what to do."""


class _RuleText(msgspec.Struct, forbid_unknown_fields=True):
    where: str
    do: list[str]


class PruneRule(NamedTuple):
    """Runs, and what to do with them."""

    where: Query
    actions: list[RunAction]


class PruneStep(NamedTuple):
    """An action on a run, or the reason why nothing is done with the run."""

    row: RunRow
    action: RunAction | None
    freed: Freed
    skipped: str = ""


def read_policy(path: str) -> list[PruneRule]:
    """Return the rules of a policy file, YAML or JSON.

    Raises:
        PruneError: if it cannot be read or a rule is invalid.
    """
    import yaml

    try:
        content = parse_yaml(read_small(Path(path), _MAX_POLICY_BYTES).decode("utf-8"))
    except OSError as error:
        raise PruneError(f"cannot read the policy {path!r}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise PruneError(f"{path!r} is not valid YAML or JSON: {error}") from error
    try:
        rules = convert(content, list[_RuleText])
    except msgspec.ValidationError as error:
        raise PruneError(f"{path!r}: {error}; expected a list of {{where: EXPR, do: [ACTION, …]}}") from error
    return [
        make_rule(rule.where, rule.do, location=f"{path!r}, rule {number}: ") for number, rule in enumerate(rules, 1)
    ]


def make_rule(where: str, actions: Sequence[str], *, location: str = "") -> PruneRule:
    """Return a rule.

    Raises:
        PruneError: if the expression or an action is invalid, or there is none.
    """
    if not where.strip():
        raise PruneError(f"{location}an empty expression would match every run; to say so, write: has(name)")
    try:
        return PruneRule(parse_query(where), [parse_action(action) for action in _require_actions(actions)])
    except (QueryError, ActionError) as error:
        raise PruneError(f"{location}{error}") from error


def _require_actions(actions: Sequence[str]) -> Sequence[str]:
    if not actions:
        raise ActionError("no action is given")
    return actions


def plan_prune(log_dir: str, rules: Sequence[PruneRule], *, is_forced: bool = False) -> list[PruneStep]:
    """Return what rules would do, run by run in the order of the rules, with an estimate of the bytes freed.

    Args:
        log_dir: the log folder.
        rules: the rules.
        is_forced: also with runs that are pinned, have the tag ``keep``, are a parent or the baseline of others, or may
            still be recorded on another machine, and with what their server does not have yet.
    """
    catalog = Catalog(log_dir)
    steps: list[PruneStep] = []
    planned_actions: dict[str, set[RunAction]] = {}
    referenced_runs: set[str] | None = None
    for rule in rules:
        rows = catalog.select(rule.where, archived=None)
        for row in rows:
            if row.id not in planned_actions:
                referenced_runs = (
                    _named_by_others(catalog.rows()) if referenced_runs is None and not is_forced else referenced_runs
                )
                skip_reason = _why_skipped(row, referenced_runs or set(), is_forced=is_forced)
                planned_actions[row.id] = set()
                if skip_reason:
                    steps.append(PruneStep(row, None, Freed(0, 0), skip_reason))
                    planned_actions[row.id].add(RunAction(""))
            run_actions = planned_actions[row.id]
            if RunAction("") in run_actions:
                continue
            for action in rule.actions:
                if action not in run_actions and RunAction("trash") not in run_actions:
                    run_actions.add(action)
                    if not is_forced and (reason := action.why_unsent(row.folder, row.id)):
                        steps.append(PruneStep(row, None, Freed(0, 0), f"{action}: {reason}"))
                        continue
                    with contextlib.suppress(OSError):
                        estimate = action.estimate(row.folder)
                        is_thinned = any(other.name == "thin" for other in run_actions)
                        if estimate.num_files or (action.name == "gzip" and is_thinned):  # thinning makes a plain file
                            steps.append(PruneStep(row, action, estimate))
    return steps


def unknown_rule_fields(log_dir: str, rules: Sequence[PruneRule]) -> list[QueryError]:
    """Return an error for each field in a rule that no run has: perhaps it is misspelled."""
    catalog = Catalog(log_dir)
    return [error for rule in rules for error in catalog.unknown_fields(rule.where)]


def _why_skipped(row: RunRow, referenced_runs: set[str], *, is_forced: bool) -> str:
    if reason := why_not_ended(row.folder, row.id, is_forced=is_forced):
        return reason
    if is_forced:
        return ""
    if row.get("pinned"):
        return "it is pinned"
    if KEEP_TAG in (row.get("tags") or ()):
        return f"it has the tag {KEEP_TAG!r}"
    if not {row.id, row.folder.name, str(_run_id(row.folder))}.isdisjoint(referenced_runs):
        return "it is a parent or the baseline of another run"
    return ""


def _named_by_others(rows: Sequence[RunRow]) -> set[str]:
    """Return names and ids of runs that other runs state as a parent or baseline."""
    names: set[str] = set()
    for row in rows:
        start = _first_record(row.folder)
        parents = start.get("parents")
        for parent in parents if isinstance(parents, list) else ():
            if isinstance(parent, dict):
                names |= {str(parent[name]) for name in ("run_id", "run_name") if parent.get(name)}
        for baseline in (start.get("baseline"), row.annotations.values.get("custom.baseline")):
            if isinstance(baseline, str) and baseline:
                names.add(baseline)
    return names


def _first_record(folder: RunFolder) -> dict[str, Any]:
    try:
        with open_journal(folder.journal) as file:
            return decode(file.readline(_MAX_START_BYTES))
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return {}


def _run_id(folder: RunFolder) -> Any:
    return _first_record(folder).get("run_id")


def apply_step(log_dir: str, step: PruneStep, *, is_forced: bool = False) -> Freed:
    """Do one step of a plan, and record it as an annotation of the run.

    Raises:
        TachographError: if it cannot be done.
    """
    action = step.action
    if action is None:
        return Freed(0, 0)
    try:
        if action.name == "trash":  # recorded before it moves
            _record(step.row.folder, action, step.freed)
        freed_space = action.apply(log_dir, step.row.folder, step.row.id, is_forced=is_forced)
        if action.name != "trash" and freed_space.num_files:
            _record(step.row.folder, action, freed_space)
    except AnnotationError:
        raise
    except OSError as error:
        if isinstance(error, TachographError):
            raise
        raise PruneError(f"{action}: {error.strerror} ({error.filename})") from error
    return freed_space


def _record(folder: RunFolder, action: RunAction, freed_space: Freed) -> None:
    day = time.strftime("%Y-%m-%d")
    files = "1 file" if freed_space.num_files == 1 else f"{freed_space.num_files} files"
    text = f"{day}: {action} freed {freed_space.num_bytes} bytes in {files}"
    annotate(folder, [{"op": "set", "field": f"custom.pruned_{action.name}", "value": text}])


@contextlib.contextmanager
def prune_lock(log_dir: str) -> Iterator[None]:
    """Keep other processes from pruning the same log folder.

    Raises:
        PruneError: if one does so now, or the folder cannot be written.
    """
    root = Path(log_dir)
    try:
        make_folder(root / OWN_FOLDER, below=root)
        descriptor = open_lock(root / OWN_FOLDER / "prune.lock", below=root)
    except OSError as error:
        raise PruneError(f"cannot write the log folder {log_dir!r}: {error.strerror or error}") from error
    try:
        if fcntl is not None:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise PruneError(f"another tacho prune is working in {log_dir!r}; wait until it is done") from error
            except OSError:  # a file system without locks
                pass
        yield
    finally:
        os.close(descriptor)
