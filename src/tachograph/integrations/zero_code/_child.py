"""Runs in every Python process of a program that `tacho run` started: instruments the packages that it imports.

Hooks on imports wrap functions of torch, add a callback to the trainers of Hugging Face and Lightning, and observe
calls of the script to other trackers and to parsers of arguments. Nothing is imported before the script imports it
itself. A failure in a hook is guarded: the script then runs without telemetry.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from tachograph._base.guard import guard
from tachograph.integrations.zero_code._configs import ConfigHooks, config_of_script
from tachograph.integrations.zero_code._imports import Hook, ImportWatch, StandIns
from tachograph.integrations.zero_code._launch_spec import LaunchSpec, report_to_launcher
from tachograph.integrations.zero_code._output_reader import OutputReader
from tachograph.integrations.zero_code._script_values import ScriptValues
from tachograph.integrations.zero_code._trackers import TrackerHooks, is_logged_by_trainer

if TYPE_CHECKING:
    from tachograph.integrations._common.integration_run import IntegrationRun, RunOptions
    from tachograph.integrations._common.loop_observer import LoopObserver
    from tachograph.integrations._common.torch_patches import TorchPatches

__all__ = ["install"]


def install() -> None:
    """Install the import watch, if `tacho run` launched this process. Imports only the standard library."""
    spec = LaunchSpec.from_environment()
    if spec is not None:
        child = _Child(spec)
        child.report_unhandled_exceptions()
        child.read_output()
        ImportWatch(child.hooks()).install()
        if spec.stand_ins:
            StandIns(spec.stand_ins).install()


class _Child:
    """The instrumentation of this process."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._spec = spec
        self._observer: LoopObserver | None = None
        self._patches: TorchPatches | None = None
        self._options_and_run: tuple[RunOptions, IntegrationRun] | None = None
        self._values = ScriptValues(
            self._start_run,
            lambda fields: report_to_launcher(spec, "values", fields),
            config_of_script,
        )
        self._output = OutputReader(self._values.log_printed, self._is_loop_observed)

    def hooks(self) -> dict[str, Hook]:
        """Return the hooks to call when a module has been imported, by its name."""
        hooks: dict[str, Callable[[ModuleType], None]] = {
            "tachograph.recorder": self._recorder_imported,
            "tachograph.bridges.wandb.facade.start": self._facade_imported,
            "torch": self._torch_imported,
            "torch.utils.data.dataloader": self._loader_imported,
            "accelerate.accelerator": self._accelerate_imported,
            "safetensors.torch": lambda module: self._observe_saving(module, "save_file", 1, "filename"),
            "transformers.modeling_utils": lambda module: self._observe_saving(
                module.PreTrainedModel, "save_pretrained", 1, "save_directory"
            ),
            "transformers.trainer": self._transformers_imported,
            "lightning.pytorch.trainer.trainer": self._lightning_imported,
            "pytorch_lightning.trainer.trainer": self._lightning_imported,
            **ConfigHooks(self._values).hooks(),
            **TrackerHooks(self._values).hooks(),
        }
        return {name: _guard_hook(name, hook) for name, hook in hooks.items()}

    # Reports to the launcher ---------------------------------------------------------------------------------------

    def _recorder_imported(self, module: ModuleType) -> None:
        def report(run: Any) -> None:
            if run.folder is not None:
                report_to_launcher(self._spec, "run", {"folder": str(run.folder.path), "name": run.name})
            elif run.enabled:
                report_to_launcher(self._spec, "rank", {"name": run.name})

        module.on_run_start.append(report)

    def _facade_imported(self, module: ModuleType) -> None:
        """Also record the loop, values of other trackers and the arguments of the script into a run of the facade."""

        def adopt(run: Any, wandb_run: Any) -> None:
            from tachograph.bridges.wandb.facade.run import OtherRecords

            wandb_run.share_with(OtherRecords(self._values.logged, is_logged_by_trainer))
            if not self._values.records_into(run):
                config = run.facts.get("config") or {}
                run.update_config({name: value for name, value in self._values.config().items() if name not in config})
                self._values.run_started(run)

        module.on_run_start.append(adopt)

    def read_output(self) -> None:
        """Read metrics from the output of the script, unless a trainer records and prints them."""
        if self._spec.reads_output:
            self._output.install()

    def _is_loop_observed(self) -> bool:
        return self._observer is not None and self._observer.state.is_recording

    def report_unhandled_exceptions(self) -> None:
        """Report an unhandled exception to the launcher: there may be no run yet to record it in."""
        previous = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            with guard("reporting an unhandled exception"):
                report_to_launcher(self._spec, "error", _error_fields(error))
            previous(kind, error, trace)

        sys.excepthook = hook

    # torch ---------------------------------------------------------------------------------------------------------

    def _torch_patches(self) -> TorchPatches:
        """Return the patches of torch; create them and the observer of the loop if necessary."""
        if self._patches is None:
            from tachograph.integrations._common.loop_observer import LoopObserver
            from tachograph.integrations._common.torch_patches import TorchPatches

            options, integration = self._shared_run()
            self._observer = LoopObserver(options, method="inferred", logs_into_any=False, integration=integration)
            self._observer.logged_by_script = self._values.logged
            self._observer.is_script_run = self._values.records_into
            self._patches = TorchPatches(self._observer)
        return self._patches

    def _shared_run(self) -> tuple[RunOptions, IntegrationRun]:
        """Return the run that the observer of the loop and the calls to trackers share."""
        if self._options_and_run is None:
            from tachograph.integrations._common.integration_run import (
                IntegrationRun,
                LaunchHooks,
                RunOptions,
                set_launch_hooks,
            )

            set_launch_hooks(LaunchHooks(self._values.config, self._values.run_started))
            options = RunOptions(None, self._spec.name, self._settings(), self._spec.default_name)
            self._options_and_run = options, IntegrationRun("pytorch", options)
        return self._options_and_run

    def _start_run(self, tool: str) -> None:
        """Start the run of a program that logs metrics with a tool and does not train in a way that we recognise."""
        with guard("starting a run"):
            self._shared_run()[1].begin(framework=tool, method="output" if tool == "output" else "tracker")

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"console": False, "tags": list(self._spec.tags)}
        return {**settings, "resume": True} if self._spec.resume else settings

    def _torch_imported(self, module: ModuleType) -> None:
        patches = self._torch_patches()
        patches.backward()
        patches.clipping()
        patches.every_optimizer()
        patches.loss_scaling()
        patches.saving(module, "save", 1, "f")
        from tachograph.integrations._common.loop_observer import set_active_observer

        assert self._observer is not None  # noqa: S101 - created by `_torch_patches`
        set_active_observer(self._observer)

    def _loader_imported(self, module: ModuleType) -> None:
        self._torch_patches().every_loader(module)

    def _observe_saving(self, owner: Any, name: str, position: int, keyword: str) -> None:
        self._torch_patches().saving(owner, name, position, keyword)

    def _accelerate_imported(self, module: ModuleType) -> None:
        self._observe_saving(
            module.Accelerator, "save_state", 1, "output_dir"
        )  # writes several files that are one checkpoint
        self._observe_saving(module.Accelerator, "save_model", 2, "save_directory")

    # Frameworks ----------------------------------------------------------------------------------------------------

    def _transformers_imported(self, module: ModuleType) -> None:
        def add(trainer: Any) -> None:
            from tachograph.integrations.transformers import TachographCallback

            self._output.is_on = False
            if not any(isinstance(callback, TachographCallback) for callback in trainer.callback_handler.callbacks):
                callback = TachographCallback(self._spec.name, **self._settings())
                callback.default_name = self._spec.default_name
                trainer.add_callback(callback)
                callback.observe_loading(trainer)

        _call_after_init(module.Trainer, add)
        _call_before_add_callback(module.Trainer, _remove_our_callback)

    def _lightning_imported(self, module: ModuleType) -> None:
        def add(trainer: Any) -> None:
            from tachograph.integrations.lightning import TachographCallback

            self._output.is_on = False
            if not any(isinstance(callback, TachographCallback) for callback in trainer.callbacks):
                callback = TachographCallback(self._spec.name, **self._settings())
                callback.default_name = self._spec.default_name
                trainer.callbacks.append(callback)

        _call_after_init(module.Trainer, add)


def _error_fields(error: BaseException) -> dict[str, Any]:
    """Return the fields of an `error` record for an unhandled exception."""
    if isinstance(error, Exception):
        from tachograph.recorder import error_fields
        from tachograph.records import to_plain

        fields: dict[str, Any] = to_plain(error_fields(error, fatal=True), "error", [])
        return fields
    # After Ctrl-C nothing may be imported: many modules call `exec`, after which Python no longer ends by the signal.
    frames, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(f"{code.co_filename}:{trace.tb_lineno} in {code.co_name}")
        trace = trace.tb_next
    return {
        "error_type": type(error).__name__,
        "error_message": str(error),
        "traceback": "\n".join(frames[-20:]),
        "fatal": True,
    }


def _guard_hook(name: str, hook: Hook) -> Hook:
    def safely(module: ModuleType) -> None:
        with guard(f"instrumenting {name}"):
            hook(module)

    return safely


def _call_after_init(kind: Any, function: Callable[[Any], None]) -> None:
    """Call a function with each new object of a class, right after its `__init__`."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - replaces that method
            original(self, *args, **kwargs)
            with guard(f"adding a callback to {kind.__name__}"):
                function(self)

        return __init__

    _wrap(kind, "__init__", make)


def _call_before_add_callback(kind: Any, function: Callable[[Any, Any], None]) -> None:
    """Call a function with the trainer and the callback before `add_callback` of a class."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def add_callback(self: Any, callback: Any) -> Any:
            with guard("observing a new callback"):
                function(self, callback)
            return original(self, callback)

        return add_callback

    _wrap(kind, "add_callback", make)


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Wrap a method for the life of the process."""
    from tachograph._base.patching import Patches  # not at startup: a script without a trainer never needs it

    Patches().wrap(owner, name, make)


def _remove_our_callback(trainer: Any, new_callback: Any) -> None:
    """Remove our callback from a Hugging Face trainer if the script adds one itself."""
    integration = sys.modules.get("tachograph.integrations.transformers")
    kind = integration.TachographCallback if integration is not None else None
    if kind is None or not (isinstance(new_callback, kind) or new_callback is kind):
        return
    for callback in list(trainer.callback_handler.callbacks):
        if isinstance(callback, kind) and callback.run is None:
            trainer.remove_callback(callback)
