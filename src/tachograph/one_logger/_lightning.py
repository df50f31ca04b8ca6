"""One Logger's Lightning integration, under One Logger's names and for both Lightning packages.

It records the same as `tachograph.integrations.lightning`, into the run of the provider. Trainer classes are
subclassed, never patched, so that other trainers in the process are not affected.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from tachograph._base.guard import guard
from tachograph.exceptions import ConfigError
from tachograph.integrations.lightning import (
    RunOptions,
    TachographCallback,
    TrainerRun,
    imported_packages,
    lightning_class,
)
from tachograph.one_logger._callback_functions import (
    on_app_end,
    on_app_start,
    on_dataloader_init_end,
    on_dataloader_init_start,
    on_distributed_init_end,
    on_distributed_init_start,
    on_load_checkpoint_end,
    on_load_checkpoint_start,
    on_model_init_end,
    on_model_init_start,
    on_optimizer_init_end,
    on_optimizer_init_start,
    on_save_checkpoint_end,
    on_save_checkpoint_start,
    on_save_checkpoint_success,
    on_testing_end,
    on_testing_start,
)
from tachograph.one_logger._provider import TrainingTelemetryProvider
from tachograph.recorder import Run
from tachograph.spans import Span, recorder_of

__all__ = ["TimeEventCallback", "hook_trainer_cls", "trainer_class"]

_trainer_classes: dict[str, type] = {}

_applications: list[Span] = []
"""The application spans that callbacks have started. Spans that have ended are removed when another one starts."""


class _ProviderTrainerRun(TrainerRun):
    """A trainer's run that is the run of the provider."""

    first_checkpoint_step = 1  # One Logger numbers a checkpoint by the completed steps

    def __init__(self, provider: TrainingTelemetryProvider) -> None:
        super().__init__(RunOptions(None, None, {}))
        self._provider = provider

    def __setstate__(self, state: dict[str, Any]) -> None:
        _ProviderTrainerRun.__init__(self, TrainingTelemetryProvider.instance())

    def begin(self, trainer: Any = None, module: Any = None) -> Run:
        """Return the provider's run. If it has ended, start another application, and with it a run."""
        if not self.is_open:
            run = self._provider.recorder.run
            if run.status != "running":
                run = _run_of(on_app_start()) or run
            self.plan = RunOptions(run, None, {})
        return super().begin(trainer, module)


class TimeEventCallback(TachographCallback):
    """Records the work of a `Trainer` in the run of a provider.

    The trainers below create one; you can also create it yourself. Creating it starts the application. `on_app_end`
    ends the application; without that call it ends with the process.

    Args:
        training_telemetry_provider: the configured provider.
        call_on_app_start: False if the program calls `on_app_start` itself.

    Raises:
        ConfigError: if it is not a provider, or not configured yet.
    """

    def __init__(self, training_telemetry_provider: TrainingTelemetryProvider, call_on_app_start: bool = True) -> None:
        super().__init__()
        if not isinstance(training_telemetry_provider, TrainingTelemetryProvider):
            raise ConfigError(
                f"expected a TrainingTelemetryProvider, got {type(training_telemetry_provider).__name__}: "
                "pass TrainingTelemetryProvider.instance()"
            )
        if not training_telemetry_provider.one_logger_ready:
            raise ConfigError("the provider is not configured: call configure_provider() before creating the callback")
        self._trainer_run = _ProviderTrainerRun(training_telemetry_provider)
        if call_on_app_start:
            self.on_app_start()

    def on_app_start(self, start_time_msec: float | None = None) -> Span:
        """Start the application, and end it with the process."""
        span = on_app_start(start_time_msec)
        if not _applications:
            atexit.register(_end_applications)
        _applications[:] = [one for one in _applications if one.active] + [span]
        return span

    def _job_parameters(self, trainer: Any) -> dict[str, Any]:
        """Return the parameters that the provider's config does not contain."""
        run = self._trainer_run.run
        config = recorder_of(run).parameters if run is not None else None
        parameters = super()._job_parameters(trainer)
        return {name: value for name, value in parameters.items() if getattr(config, name, None) is None}

    on_app_end = staticmethod(on_app_end)
    on_distributed_init_start = staticmethod(on_distributed_init_start)
    on_distributed_init_end = staticmethod(on_distributed_init_end)
    on_model_init_start = staticmethod(on_model_init_start)
    on_model_init_end = staticmethod(on_model_init_end)
    on_dataloader_init_start = staticmethod(on_dataloader_init_start)
    on_dataloader_init_end = staticmethod(on_dataloader_init_end)
    on_optimizer_init_start = staticmethod(on_optimizer_init_start)
    on_optimizer_init_end = staticmethod(on_optimizer_init_end)
    on_load_checkpoint_start = staticmethod(on_load_checkpoint_start)
    on_load_checkpoint_end = staticmethod(on_load_checkpoint_end)
    on_save_checkpoint_start = staticmethod(on_save_checkpoint_start)
    on_save_checkpoint_success = staticmethod(on_save_checkpoint_success)
    on_save_checkpoint_end = staticmethod(on_save_checkpoint_end)
    on_testing_start = staticmethod(on_testing_start)
    on_testing_end = staticmethod(on_testing_end)


def hook_trainer_cls(
    cls: type,
    training_telemetry_provider: TrainingTelemetryProvider,
    telemetry_callback: TimeEventCallback | None = None,
) -> tuple[type, TimeEventCallback]:
    """Return a subclass of a trainer class whose instances are recorded, and the callback they share.

    Args:
        cls: `Trainer` of either package, or a subclass of one.
        training_telemetry_provider: the configured provider.
        telemetry_callback: the callback to use; a new one by default.

    Raises:
        ConfigError: if `cls` is not a trainer class, or the provider is not configured.

    Example:
        >>> HookedTrainer, callback = hook_trainer_cls(Trainer, TrainingTelemetryProvider.instance())
        >>> trainer = HookedTrainer(max_epochs=3)
    """
    if not isinstance(cls, type) or not hasattr(cls, "save_checkpoint"):
        raise ConfigError(f"hook_trainer_cls({cls!r:.80}): expected a trainer class, such as lightning.pytorch.Trainer")
    callback = telemetry_callback or TimeEventCallback(training_telemetry_provider)
    original: Any = cls.__init__  # type: ignore[misc] # the __init__ of this class, not of an instance

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807 - replaces that method
        original(self, *arguments, **{**options, "callbacks": [callback, *_as_list(options.get("callbacks"))]})

    attributes = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    callback_property = property(lambda self: callback, doc="The callback that records.")
    subclass = type(
        cls.__name__, (cls,), {**attributes, "__init__": __init__, "nv_one_logger_callback": callback_property}
    )
    return subclass, callback


def trainer_class() -> type:
    """Return `OneLoggerPTLTrainer` for the imported package; for `lightning.pytorch` if both are imported."""
    package = imported_packages()[0]
    if package not in _trainer_classes:
        _trainer_classes[package] = _make_trainer_class(lightning_class("Trainer", package))
    return _trainer_classes[package]


def _make_trainer_class(base: Any) -> type:
    class OneLoggerPTLTrainer(base):  # type: ignore[misc]
        """A `Trainer` that is recorded in the run of a provider.

        Args:
            trainer_config: the arguments of `Trainer`, as a dict. It is not modified.
            training_telemetry_provider: the configured provider.
        """

        def __init__(
            self, trainer_config: Mapping[str, Any], training_telemetry_provider: TrainingTelemetryProvider
        ) -> None:
            if not isinstance(trainer_config, Mapping):
                raise ConfigError(
                    f"trainer_config={trainer_config!r:.80}: expected a dict of Trainer's arguments, "
                    "such as {'max_epochs': 3}"
                )
            self._one_logger_callback = TimeEventCallback(training_telemetry_provider)
            callbacks = [self._one_logger_callback, *_as_list(trainer_config.get("callbacks"))]
            super().__init__(**{**trainer_config, "callbacks": callbacks})

        @property
        def nv_one_logger_callback(self) -> TimeEventCallback:
            """The callback that records."""
            return self._one_logger_callback

    OneLoggerPTLTrainer.__module__, OneLoggerPTLTrainer.__qualname__ = "tachograph.one_logger", "OneLoggerPTLTrainer"
    return OneLoggerPTLTrainer


def _as_list(callbacks: Any) -> list[Any]:
    """Return the `callbacks` argument of a trainer (None, one callback or several) as a list."""
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]


def _run_of(span: Span) -> Run | None:
    return span.recorder.run if span.recorder is not None else None


def _end_applications() -> None:
    """End the open applications at exit. The run records how the process ends."""
    for span in _applications:
        with guard("ending the application"):
            if span.active and span.recorder is not None:
                span.recorder.close_open(span)
                span.recorder.close_span(span)
