"""`wandb.init`: from W&B's arguments to a run of ours. Also holds the current run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tachograph._base import ranks
from tachograph._base.config import find_section
from tachograph._base.guard import guard, warn
from tachograph._base.settings import Mode, Settings, parse_switch
from tachograph._init import init as start
from tachograph.bridges.drop_in import run_to_join
from tachograph.bridges.wandb.facade.config import config_defaults, parse_config
from tachograph.bridges.wandb.facade.disabled_run import DisabledWandbRun
from tachograph.bridges.wandb.facade.errors import UnsupportedError, UsageError
from tachograph.bridges.wandb.facade.names import generate_name
from tachograph.bridges.wandb.facade.run import WandbRun
from tachograph.bridges.wandb.facade.settings import VARIABLES, WandbSettings, is_disabled
from tachograph.bridges.wandb.facade.util import generate_id
from tachograph.journal import RunFolder, RunState, list_runs, read_records, stat_journal
from tachograph.reader import overview
from tachograph.recorder import DisabledRun, Run
from tachograph.records import suggest_run_name

__all__ = ["active_run", "active_runs", "init", "on_run_start", "setup"]

_MODES = ("online", "offline", "disabled", "shared", "dryrun", "run")
_OFFLINE = ("offline", "dryrun")
_RESUME = ("allow", "must", "never", "auto")

_lock = threading.RLock()
active_runs: list[WandbRun] = []
"""The runs that have not ended; module functions use the last one."""
on_run_start: list[Callable[[Run, WandbRun], None]] = []
"""Functions to call with each run of ours that `init` starts or joins, and with its facade."""
_defaults = WandbSettings()


def active_run() -> WandbRun | None:
    """Return the run that module functions use, or None."""
    if active_runs and active_runs[-1]._run._is_forked:
        return None  # in a forked worker, the run belongs to the parent
    return active_runs[-1] if active_runs else None


def setup(settings: Any = None) -> WandbSettings:
    """Set defaults for `init`."""
    if settings is not None:
        _defaults.update(settings if isinstance(settings, Mapping) else vars(settings))
    return _defaults


def init(
    entity: str | None = None,
    project: str | None = None,
    dir: str | os.PathLike[str] | None = None,  # noqa: A002 - the names of the original
    id: str | None = None,  # noqa: A002
    name: str | None = None,
    notes: str | None = None,
    tags: Iterable[str] | None = None,
    config: Any = None,
    config_exclude_keys: Iterable[str] | None = None,
    config_include_keys: Iterable[str] | None = None,
    allow_val_change: bool | None = None,
    group: str | None = None,
    job_type: str | None = None,
    mode: str | None = None,
    force: bool | None = None,
    reinit: bool | str | None = None,
    resume: bool | str | None = None,
    resume_from: str | None = None,
    fork_from: str | None = None,
    save_code: bool | None = None,
    tensorboard: bool | None = None,
    sync_tensorboard: bool | None = None,
    monitor_gym: bool | None = None,
    settings: Any = None,
    anonymous: Any = None,
    magic: Any = None,
) -> WandbRun:
    """Start to record a run with the arguments of `wandb.init`. Nothing is sent to W&B, and no account is needed.

    Args:
        entity: stored in the run's facts.
        project: stored in the run's facts.
        dir: runs are recorded to `logs` in this folder; by default, to the folder in `TACHO_LOG_DIR` or to `logs`.
        id: the id by which `resume` finds the run.
        name: the name of the run; generated if not given.
        notes: stored in the run's facts.
        tags: words to find the run by.
        config: a dict, a namespace, flags or the path of a YAML file.
        config_exclude_keys: keys of the config that are left out.
        config_include_keys: the only keys of the config that are kept.
        allow_val_change: has no effect here; pass it to `config.update`.
        group: stored in the run's facts.
        job_type: stored in the run's facts.
        mode: `disabled` records nothing. `offline` sends nothing to a `server` of yours before `tacho sync`; any other
            mode leaves it to the setting `mode`.
        force: has no effect.
        reinit: how to handle an active run: end it (`finish_previous` or true), leave it open and start another
            (`create_new`), or return it (`return_previous`, the default).
        resume: `allow`, `must`, `never` or `auto`: whether to continue the run with this id.
        resume_from: not supported.
        fork_from: not supported.
        save_code: has no effect: the run has the git commit.
        tensorboard: another name of `sync_tensorboard`.
        sync_tensorboard: also record the scalars that `SummaryWriter` of torch or tensorboardX writes.
        monitor_gym: has no effect: videos are not recorded.
        settings: `wandb.Settings`, or a dict.
        anonymous: has no effect.
        magic: has no effect.

    Raises:
        UsageError: if `resume` cannot be satisfied, or an argument is invalid.
    """
    arguments = {name: value for name, value in locals().items() if name in VARIABLES and value is not None}
    run_settings = settings if isinstance(settings, WandbSettings) else WandbSettings(**dict(settings or {}))
    values = {**_from_environment(), **_defaults.arguments(), **run_settings.arguments(), **arguments}
    if resume_from or fork_from:
        argument = "resume_from" if resume_from else "fork_from"
        raise UnsupportedError(f"init({argument}=…): runs cannot be forked; use resume='must' with an id")
    is_silent = _is_silent(run_settings)
    with _lock:
        previous = active_run()
        if previous is not None and reinit in (None, False, "default", "return_previous"):
            previous.config.update(parse_config(config), allow_val_change=True)
            return previous
        if previous is not None and reinit != "create_new":
            previous.finish()
        snapshot = _select(config, config_include_keys, config_exclude_keys)
        run = _start(values, snapshot, run_settings, is_silent=is_silent)
        active_runs.append(run)
    flags = {"anonymous": anonymous, "force": force, "magic": magic, "monitor_gym": monitor_gym, "save_code": save_code}
    ignored_flags = [name for name, value in flags.items() if value]
    if ignored_flags and not run.disabled and not is_silent:
        warn("wandb.init: no effect here: %s", ", ".join(ignored_flags))
    if (sync_tensorboard or tensorboard or values.get("sync_tensorboard")) and not run.disabled:
        with guard("observing TensorBoard"):
            from tachograph.bridges.wandb.facade.sync_tensorboard import observe_writers

            observe_writers(run)
    return run


def _from_environment() -> dict[str, Any]:
    values: dict[str, Any] = {name: os.environ[key] for name, key in VARIABLES.items() if os.environ.get(key)}
    if "tags" in values:
        values["tags"] = [tag.strip() for tag in values["tags"].split(",") if tag.strip()]
    return values


def _is_silent(settings: WandbSettings) -> bool:
    return bool(settings.silent) or parse_switch(os.environ.get("WANDB_SILENT", "")) is True


def _select(config: Any, include: Iterable[str] | None, exclude: Iterable[str] | None) -> dict[str, Any]:
    if include is not None and exclude is not None:
        raise UsageError("give either config_include_keys or config_exclude_keys")
    values = parse_config(config)
    if include is not None:
        values = {name: value for name, value in values.items() if name in set(include)}
    if exclude is not None:
        values = {name: value for name, value in values.items() if name not in set(exclude)}
    return {**config_defaults(), **values}


def _start(values: dict[str, Any], config: dict[str, Any], settings: WandbSettings, *, is_silent: bool) -> WandbRun:
    mode = values.get("mode")
    if mode is not None and mode not in _MODES:
        raise UsageError(f"mode={mode!r}: expected one of {', '.join(_MODES)}")
    facts = {
        name: str(values[name]) for name in ("project", "entity", "group", "job_type", "notes") if values.get(name)
    }
    tags = [values["tags"]] if isinstance(values.get("tags"), str) else list(values.get("tags") or ())
    common: dict[str, Any] = {**facts, "tags": tags, "settings": settings, "config": config, "on_finish": _forget}
    if mode == "disabled" or is_disabled():
        recorder_run: Run = DisabledRun("disabled", settings=Settings(enabled=False), backend=None)
        return DisabledWandbRun(recorder_run, id=values.get("id") or generate_id(), is_ours=True, **common)
    active = run_to_join()
    is_own = any(run._run is active and run._is_ours for run in active_runs)
    if active is not None and not is_own:  # an integration of ours has started it, and will end it
        active_config = active.facts.get("config", {})
        active.update_config({name: value for name, value in config.items() if name not in active_config})
        return _announce(active, WandbRun(active, id=values.get("id") or active.id, is_ours=False, **common))
    log_dir = os.path.join(os.fspath(values["dir"]), "logs") if values.get("dir") else None
    options: dict[str, Any] = {"log_dir": log_dir} if log_dir else {}
    options |= {"console": False} if is_silent else {}
    options |= {"mode": Mode.OFFLINE.value} if mode in _OFFLINE and _is_sent(config) else {}
    previous = _find(
        values.get("resume"), values.get("id"), log_dir or os.environ.get("TACHO_LOG_DIR") or Settings().log_dir
    )
    last_step = overview(previous[0]).step if previous else None
    run_id = values.get("id") or (previous[1] if previous else generate_id())
    name = previous[0].name if previous else (suggest_run_name(str(values.get("name") or "")) or _new_name())
    recorder_run = start(
        name, config=config, tags=tags, facts={**facts, "wandb_id": run_id}, resume=previous is not None, **options
    )
    recorder_run.print_line("wandb calls are recorded here; nothing is sent to W&B")
    first_step = 0 if last_step is None else last_step + 1
    display_name = str(values["name"]) if values.get("name") else None
    kind = WandbRun if recorder_run.enabled else DisabledWandbRun
    run = kind(recorder_run, id=run_id, name=display_name, is_ours=True, first_step=first_step, **common)
    return _announce(recorder_run, run)


def _announce(recorder_run: Run, run: WandbRun) -> WandbRun:
    for function in on_run_start:
        with guard("starting a run"):
            function(recorder_run, run)
    return run


def _is_sent(config: Mapping[str, Any]) -> bool:
    """Return whether the run would be sent to a server because of its address alone, without a mode of ours."""
    content = None
    with guard("searching the config for a server"):
        content = find_section(config).value
    section = content if isinstance(content, Mapping) else {}
    has_mode = os.environ.get("TACHO_MODE") or section.get("mode")
    return not has_mode and bool(os.environ.get("TACHO_SERVER") or section.get("server"))


def _new_name() -> str:
    """Return a name for a run; the processes of a distributed job must agree on it."""
    job = ranks.job_id()
    return f"run-{suggest_run_name(job)}" if job else generate_name()


def _find(resume: Any, run_id: str | None, log_dir: str) -> tuple[RunFolder, str] | None:
    """Return the run to continue and its id, or None to start a new one.

    Raises:
        UsageError: if there is no such run but there must be, or the other way round.
    """
    if resume is True:
        resume = "auto"
    if not resume:
        if run_id and _with_id(run_id, log_dir):
            warn(
                "wandb.init: there is a run with the id %r; a new one is recorded. To continue it, pass resume=", run_id
            )
        return None
    if resume not in _RESUME:
        raise UsageError(f"resume={resume!r}: expected one of {', '.join(_RESUME)}")
    if run_id is None:
        if resume == "must":
            raise UsageError("resume='must' needs the id of the run")
        return _last_unfinished(log_dir) if resume == "auto" else None
    folder = _with_id(run_id, log_dir)
    if resume == "must" and folder is None:
        raise UsageError(f"resume='must': there is no run with the id {run_id!r} in {log_dir!r}")
    if resume == "never" and folder is not None:
        raise UsageError(f"resume='never': the run {folder.name!r} has the id {run_id!r} already")
    return (folder, run_id) if folder is not None and resume != "never" else None


def _with_id(run_id: str, log_dir: str) -> RunFolder | None:
    return next((folder for folder in list_runs(log_dir) if _id_of(folder) == run_id), None)


def _id_of(folder: RunFolder) -> str | None:
    first = next(iter(read_records(folder.journal)), {})
    return first.get("wandb_id") if isinstance(first.get("wandb_id"), str) else None


def _last_unfinished(log_dir: str) -> tuple[RunFolder, str] | None:
    """Return the newest run that crashed or failed."""
    runs = [(stat_journal(folder.journal).st_mtime, folder, _id_of(folder)) for folder in list_runs(log_dir)]
    for _, folder, run_id in sorted(runs, key=lambda item: -item[0]):
        if run_id is not None:
            is_open = overview(folder).state in (RunState.CRASHED, RunState.FAILED, RunState.INTERRUPTED)
            return (folder, run_id) if is_open else None
    return None


def _forget(run: WandbRun) -> None:
    with _lock:
        if run in active_runs:
            active_runs.remove(run)
