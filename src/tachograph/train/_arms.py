"""The trainings of `tacho train --ab`: with and without a plugin, each in a process of its own.

A process of its own makes the trainings independent: peaks of memory start from the same level, and a patch, a cache or
a compiled kernel of one cannot reach the next. The process is a fork of this one, which has imported the packages but
has not used them, so that it starts at once and can use a GPU.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tachograph._base.files import open_user_file
from tachograph._base.settings import resolve_settings
from tachograph.exceptions import ConfigError, TachographError
from tachograph.train._job import load

if TYPE_CHECKING:
    from tachograph.plugins import StepDifference

__all__ = [
    "ArmError",
    "ArmOutcome",
    "ArmProbe",
    "CheckedArms",
    "TrainArm",
    "call_in_process",
    "check_arms",
    "probe_arm",
    "train_arm",
]

_Result = TypeVar("_Result")
_SUBSECTIONS = ("notify", "rules", "signals")
_STOP_S = 60.0


class ArmError(TachographError):
    """A training of an arm failed; the message has the end of its output."""


class TrainArm(NamedTuple):
    """An arm: a config with changes, and the plugins that it leaves out."""

    config: str
    overrides: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def set(self, *overrides: str) -> TrainArm:
        """Return the arm with further changes of the config."""
        return self._replace(overrides=(*self.overrides, *overrides))


class CheckedArms(NamedTuple):
    """Two arms that can be trained."""

    plugin: str
    """The name of the plugin."""
    num_steps: int
    output_dir: str
    log_dir: str


class ArmOutcome(NamedTuple):
    """A training of an arm."""

    run_dir: str
    duration_s: float
    peak_bytes: dict[str, float]
    """The peak of `device_allocated`, and of `host`."""


class ArmProbe(NamedTuple):
    """Loss and gradients at equal weights."""

    differences: list[StepDifference]
    notes: list[str]
    precision: str
    """`float32`, `tf32`, `float16` or `bfloat16`."""


def check_arms(arm: TrainArm, plugin: str) -> CheckedArms:
    """Find all errors before anything is trained.

    Args:
        arm: the arm with the plugin.
        plugin: the plugin to compare with and without: its name, or its entry in the config.

    Raises:
        ConfigError: if one of the arms cannot be trained, or the plugin has no effect.
    """
    from tachograph.plugins import listed_plugins
    from tachograph.train._without import remove_plugins

    with load(arm.config, arm.overrides, without=arm.without) as job:
        remove_plugins(job.values, [plugin])  # raises an error if it is not listed
        name = next(entry.name for entry in listed_plugins(job.values["plugins"]) if plugin in (entry.name, entry.path))
        if name in job.session.off:
            raise ConfigError(f"--ab: plugin {name} is off ({job.session.off[name]}): there is nothing to compare")
        config = job.config
        if config.resume_from_checkpoint or config.auto_resume_from_checkpoints:
            key = "resume_from_checkpoint" if config.resume_from_checkpoint else "auto_resume_from_checkpoints"
            raise ConfigError(
                f"--ab: {key} is set, but both arms must start from the same weights: add --set {key}=null"
            )
        section = {key: value for key, value in config.telemetry.items() if key not in _SUBSECTIONS}
        settings = resolve_settings({}, section)
        if not settings.enabled:
            raise ConfigError("--ab: telemetry is off, so nothing can be compared: set telemetry.enabled to true")
        checked_job = job.check()
        if name not in [entry.plugin_name() for entry in job.session.plugins]:
            raise ConfigError(f"--ab: plugin {name} is not used: {'; '.join(job.session.warnings)}")
    try:
        with load(arm.config, arm.overrides, without=(*arm.without, name)) as job:
            job.check()
    except ConfigError as error:
        raise ConfigError(f"--ab: the config cannot be trained without plugin {name}: {error}") from error
    return CheckedArms(name, checked_job.steps.total, config.output_dir, settings.log_dir)


def train_arm(arm: TrainArm) -> ArmOutcome:
    """Train an arm, and return its run.

    Raises:
        ConfigError: if the config is invalid, or the training was not recorded.
    """
    start_s = time.monotonic()
    with load(arm.config, arm.overrides, without=arm.without) as job:
        result = job.run()
    if result.run_dir is None:
        raise ConfigError("--ab: the training was not recorded: is telemetry off?")
    return ArmOutcome(str(result.run_dir), time.monotonic() - start_s, _peak_bytes())


def _peak_bytes() -> dict[str, float]:
    """Return the highest use of memory of this process."""
    import torch

    unit_bytes = 1 if sys.platform == "darwin" else 1024
    peaks = {"host": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes)}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        devices = range(torch.cuda.device_count())
        peaks["device_allocated"] = float(sum(torch.cuda.max_memory_allocated(index) for index in devices))
    return peaks


def probe_arm(arm: TrainArm, folder: str, *, is_reference: bool) -> ArmProbe:
    """Train an arm for some steps at the weights of the reference, and compare loss and gradients.

    Args:
        arm: the arm.
        folder: where the reference writes its weights and gradients.
        is_reference: whether the arm is the reference, which comes first.
    """
    from tachograph.plugins import EqualWeightsProbe
    from tachograph.train._model import compute_dtype

    probe = EqualWeightsProbe(Path(folder), is_reference=is_reference)
    with load(arm.config, arm.overrides, without=arm.without) as job:
        job.probe(probe)
        return ArmProbe(probe.differences, probe.notes, _precision(compute_dtype(job.config)))


def _precision(dtype: str) -> str:
    import torch

    uses_tf32 = torch.cuda.is_available() and torch.backends.cuda.matmul.allow_tf32
    return "tf32" if dtype == "float32" and uses_tf32 else dtype


def call_in_process(log: Path, function: Callable[..., _Result], *arguments: Any, **options: Any) -> _Result:
    """Call a function in a process of its own, whose output goes to a file, and return its result.

    Raises:
        ConfigError: if the function raises it.
        ArmError: if it fails in another way.
    """
    for name in ("torch", "transformers.trainer", "datasets"):
        importlib.import_module(name)  # the fork has them then
    has_fork = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
    context: Any = multiprocessing.get_context("fork" if has_fork else "spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(sender, str(log), function, arguments, options))
    process.start()
    sender.close()
    try:
        kind, value = receiver.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise ArmError(f"the training {how}\n{_tail(log)}") from None
    except KeyboardInterrupt:
        process.join(_STOP_S)  # it has received the signal, too
        if process.is_alive():
            process.terminate()
        raise
    finally:
        receiver.close()
    process.join()
    if kind == "interrupted":
        raise KeyboardInterrupt
    if kind == "config":
        raise ConfigError(value)
    if kind == "error":
        raise ArmError(f"{value}\n{_tail(log)}")
    result: _Result = value
    return result


def _call(sender: Connection, log: str, function: Any, arguments: Sequence[Any], options: dict[str, Any]) -> None:
    """Call a function and send its result; runs in the new process."""
    with open_user_file(log) as file:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    message: tuple[str, Any]
    try:
        message = ("result", function(*arguments, **options))
    except KeyboardInterrupt:
        message = ("interrupted", None)
    except ConfigError as error:
        message = ("config", str(error))
    except BaseException as error:  # noqa: BLE001 - raised in the other process
        traceback.print_exc()
        message = ("error", f"the training failed: {type(error).__name__}: {error}")
    sender.send(message)
    sender.close()


def _tail(log: Path, num_lines: int = 30) -> str:
    with contextlib.suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(line[:500] for line in lines[-num_lines:])
    return ""
