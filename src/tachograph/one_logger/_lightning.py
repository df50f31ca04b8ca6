"""One Logger's Lightning integration under its names, for both of Lightning's packages.

It sees what `tachograph.integrations.lightning` sees; what is recorded goes to the run of the provider. Trainer classes
are subclassed, never changed in place: other trainers of the process stay as they are.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from tachograph._base.guard import guard
from tachograph.exceptions import ConfigError
from tachograph.integrations._common.job import Plan
from tachograph.integrations.lightning import TachographCallback
from tachograph.integrations.lightning._bases import lightning_class, packages
from tachograph.integrations.lightning._session import Session
from tachograph.one_logger._provider import TrainingTelemetryProvider
from tachograph.recorder import Run
from tachograph.spans import (
    Span,
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
    recorder_of,
)

__all__ = ["TimeEventCallback", "hook_trainer_cls", "trainer_class"]

_trainer_classes: dict[str, type] = {}

_applications: list[Span] = []
"""Those that a callback began, until the next one does."""


class _ProviderSession(Session):
    """A session in the run of the provider."""

    counts_steps_from = 1  # One Logger gives a checkpoint the number of steps that are done

    def __init__(self, provider: TrainingTelemetryProvider) -> None:
        super().__init__(Plan(None, None, {}))
        self._provider = provider

    def __setstate__(self, state: dict[str, Any]) -> None:
        _ProviderSession.__init__(self, TrainingTelemetryProvider.instance())

    def begin(self, trainer: Any = None, module: Any = None) -> Run:
        """Return the provider's run; after it has ended, begin another application, and with it a run."""
        if not self.is_open:
            run = self._provider.recorder.run
            if run.status != "running":
                run = _run_of(on_app_start()) or run
            self.plan = Plan(run, None, {})
        return super().begin(trainer, module)


class TimeEventCallback(TachographCallback):
    """Records what a `Trainer` does in the run of a provider; made by the trainers below, or by hand.

    Constructing it begins the application. `on_app_end` ends it, and need not be called: it ends with the process.

    Args:
        training_telemetry_provider: the provider, configured.
        call_on_app_start: False if the program calls `on_app_start` itself.

    Raises:
        ConfigError: if it is no provider, or not configured yet.
    """

    def __init__(self, training_telemetry_provider: TrainingTelemetryProvider, call_on_app_start: bool = True) -> None:
        super().__init__()
        if not isinstance(training_telemetry_provider, TrainingTelemetryProvider):
            raise ConfigError(
                f"a TrainingTelemetryProvider is expected, got {type(training_telemetry_provider).__name__}: "
                "pass TrainingTelemetryProvider.instance()"
            )
        if not training_telemetry_provider.one_logger_ready:
            raise ConfigError("the provider is not configured: call configure_provider() before the callback is made")
        self._session = _ProviderSession(training_telemetry_provider)
        if call_on_app_start:
            self.on_app_start()

    def on_app_start(self, start_time_msec: float | None = None) -> Span:
        """The program begins."""
        span = on_app_start(start_time_msec)
        if not _applications:
            atexit.register(_close)
        _applications[:] = [one for one in _applications if one.active] + [span]
        return span

    def _job_parameters(self, trainer: Any) -> dict[str, Any]:
        """Return what the provider's config does not say."""
        run = self._session.run
        known = recorder_of(run).parameters if run is not None else None
        found = super()._job_parameters(trainer)
        return {name: value for name, value in found.items() if getattr(known, name, None) is None}

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
    """Return a subclass of a trainer class whose trainers are recorded, and the callback they share.

    Args:
        cls: `Trainer` of either package, or a subclass of one.
        training_telemetry_provider: the provider, configured.
        telemetry_callback: the callback, if there is one already.

    Raises:
        ConfigError: if that is no trainer class, or the provider is not configured.

    Example:
        >>> HookedTrainer, callback = hook_trainer_cls(Trainer, TrainingTelemetryProvider.instance())
        >>> trainer = HookedTrainer(max_epochs=3)
    """
    if not isinstance(cls, type) or not hasattr(cls, "save_checkpoint"):
        raise ConfigError(f"hook_trainer_cls({cls!r:.80}): a class is expected, such as lightning.pytorch.Trainer")
    callback = telemetry_callback or TimeEventCallback(training_telemetry_provider)
    original: Any = cls.__init__  # type: ignore[misc] # of this very class

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807 - it is that method
        original(self, *arguments, **{**named, "callbacks": [callback, *_listed(named.get("callbacks"))]})

    own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    shown = property(lambda self: callback, doc="The callback that records.")
    hooked = type(cls.__name__, (cls,), {**own, "__init__": __init__, "nv_one_logger_callback": shown})
    return hooked, callback


def trainer_class() -> type:
    """Return `OneLoggerPTLTrainer` for the package that is imported; `lightning.pytorch` if both are."""
    package = packages()[0]
    if package not in _trainer_classes:
        _trainer_classes[package] = _make_trainer_class(lightning_class("Trainer", package))
    return _trainer_classes[package]


def _make_trainer_class(base: Any) -> type:
    class OneLoggerPTLTrainer(base):  # type: ignore[misc]
        """A `Trainer` that is recorded in the run of a provider.

        Args:
            trainer_config: what `Trainer` takes, as a dict, which is not changed.
            training_telemetry_provider: the provider, configured.
        """

        def __init__(
            self, trainer_config: Mapping[str, Any], training_telemetry_provider: TrainingTelemetryProvider
        ) -> None:
            if not isinstance(trainer_config, Mapping):
                raise ConfigError(
                    f"trainer_config={trainer_config!r:.80}: a dict of Trainer's arguments is expected, "
                    "such as {'max_epochs': 3}"
                )
            self._one_logger_callback = TimeEventCallback(training_telemetry_provider)
            callbacks = [self._one_logger_callback, *_listed(trainer_config.get("callbacks"))]
            super().__init__(**{**trainer_config, "callbacks": callbacks})

        @property
        def nv_one_logger_callback(self) -> TimeEventCallback:
            """The callback that records."""
            return self._one_logger_callback

    OneLoggerPTLTrainer.__module__, OneLoggerPTLTrainer.__qualname__ = "tachograph.one_logger", "OneLoggerPTLTrainer"
    return OneLoggerPTLTrainer


def _listed(callbacks: Any) -> list[Any]:
    """Return the callbacks that a trainer was given: none, one, or several."""
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]


def _run_of(span: Span) -> Run | None:
    return span.recorder.run if span.recorder is not None else None


def _close() -> None:
    """End applications with the process; how that ends is told by the run."""
    for span in _applications:
        with guard("ending the application"):
            if span.active and span.recorder is not None:
                span.recorder.close_open(span)
                span.recorder.close_span(span)
