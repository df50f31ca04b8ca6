"""In a process that `tacho run` started: watch imports, and instrument what training is done with."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from tachograph._base.guard import guard
from tachograph.integrations.zero_code._imports import Hook, ImportWatch
from tachograph.integrations.zero_code._launch_spec import Order, leave_word

if TYPE_CHECKING:
    from tachograph.integrations._common.loop_observer import Observer
    from tachograph.integrations._common.torch_patches import Patches

__all__ = ["install"]


def install() -> None:
    """Begin to watch, as the launcher asked. Imports nothing but the standard library."""
    order = Order.from_environment()
    if order is not None:
        child = _Child(order)
        child.watch_exceptions()
        ImportWatch(child.hooks()).install()


class _Child:
    """What is done in this process for the launcher."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._observer: Observer | None = None
        self._patches: Patches | None = None

    def hooks(self) -> dict[str, Hook]:
        """Return what to do when a module has been imported."""
        hooks: dict[str, Callable[[ModuleType], None]] = {
            "tachograph.recorder._process": self._recorder_imported,
            "torch": self._torch_imported,
            "torch.utils.data.dataloader": self._loader_imported,
            "accelerate.accelerator": self._accelerate_imported,
            "safetensors.torch": lambda module: self._saves(module, "save_file", 1, "filename"),
            "transformers.modeling_utils": lambda module: self._saves(
                module.PreTrainedModel, "save_pretrained", 1, "save_directory"
            ),
            "transformers.trainer": self._transformers_imported,
            "lightning.pytorch.trainer.trainer": self._lightning_imported,
            "pytorch_lightning.trainer.trainer": self._lightning_imported,
        }
        return {name: _guarded(name, hook) for name, hook in hooks.items()}

    # Word for the launcher -----------------------------------------------------------------------------------------

    def _recorder_imported(self, module: ModuleType) -> None:
        def tell(run: Any) -> None:
            if run.folder is not None:
                leave_word(self._order, "run", {"folder": str(run.folder.path), "name": run.name})
            elif run.enabled:
                leave_word(self._order, "rank", {"name": run.name})

        module.on_run_start.append(tell)

    def watch_exceptions(self) -> None:
        """Leave word of an exception that nobody handles: it may come before there is a run to record it in."""
        previous = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            with guard("leaving word of an exception"):
                leave_word(self._order, "error", _said_of(error))
            previous(kind, error, trace)

        sys.excepthook = hook

    # torch ---------------------------------------------------------------------------------------------------------

    def _patching(self) -> Patches:
        """Return what wraps functions of torch, with an observer that follows the loop."""
        if self._patches is None:
            from tachograph.integrations._common.job import Plan, forgive_mistakes
            from tachograph.integrations._common.loop_observer import Observer
            from tachograph.integrations._common.torch_patches import Patches

            forgive_mistakes()
            plan = Plan(None, self._order.name, self._settings(), self._order.default_name)
            self._observer = Observer(plan, method="inferred", logs_into_any=False)
            self._patches = Patches(self._observer)
        return self._patches

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"console": False, "tags": list(self._order.tags)}
        return {**settings, "resume": True} if self._order.resume else settings

    def _torch_imported(self, module: ModuleType) -> None:
        patches = self._patching()
        patches.backward()
        patches.clipping()
        patches.every_optimizer()
        patches.loss_scaling()
        patches.saving(module, "save", 1, "f")
        from tachograph.integrations._common.loop_observer import share

        assert self._observer is not None  # noqa: S101 - made by `_patching`
        share(self._observer)

    def _loader_imported(self, module: ModuleType) -> None:
        self._patching().every_loader(module)

    def _saves(self, owner: Any, name: str, place: int, keyword: str) -> None:
        self._patching().saving(owner, name, place, keyword)

    def _accelerate_imported(self, module: ModuleType) -> None:
        self._saves(module.Accelerator, "save_state", 1, "output_dir")  # several files that are one checkpoint
        self._saves(module.Accelerator, "save_model", 2, "save_directory")

    # Frameworks ----------------------------------------------------------------------------------------------------

    def _transformers_imported(self, module: ModuleType) -> None:
        def add(trainer: Any) -> None:
            from tachograph.integrations.transformers import TachographCallback

            if not any(isinstance(callback, TachographCallback) for callback in trainer.callback_handler.callbacks):
                callback = TachographCallback(self._order.name, **self._settings())
                callback.default_name = self._order.default_name
                trainer.add_callback(callback)
                callback.see(trainer)

        _behind_init(module.Trainer, add)
        _before_adding(module.Trainer, _give_way)

    def _lightning_imported(self, module: ModuleType) -> None:
        def add(trainer: Any) -> None:
            from tachograph.integrations.lightning import TachographCallback

            if not any(isinstance(callback, TachographCallback) for callback in trainer.callbacks):
                callback = TachographCallback(self._order.name, **self._settings())
                callback.default_name = self._order.default_name
                trainer.callbacks.append(callback)

        _behind_init(module.Trainer, add)


def _said_of(error: BaseException) -> dict[str, Any]:
    """Return the fields of a record of an exception that nobody handled."""
    if isinstance(error, Exception):
        from tachograph.recorder import error_fields
        from tachograph.records import to_plain

        fields: dict[str, Any] = to_plain(error_fields(error, fatal=True), "error", [])
        return fields
    # After Ctrl-C nothing may be imported: many a module runs `exec`, by which Python forgets to end by the signal.
    places, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename}:{trace.tb_lineno} in {code.co_name}")
        trace = trace.tb_next
    said = {"error_type": type(error).__name__, "error_message": str(error), "traceback": "\n".join(places[-20:])}
    return {**said, "fatal": True}


def _guarded(name: str, hook: Hook) -> Hook:
    def safely(module: ModuleType) -> None:
        with guard(f"instrumenting {name}"):
            hook(module)

    return safely


def _behind_init(kind: Any, add: Callable[[Any], None]) -> None:
    """Do something with each object of a class right after it is made, once."""
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807 - it stands in for that method
        original(self, *arguments, **named)
        with guard(f"adding a callback to {kind.__name__}"):
            add(self)

    kind.__init__ = __init__


def _before_adding(kind: Any, prepare: Callable[[Any, Any], None]) -> None:
    """Do something before a callback is added to an object of a class."""
    original = kind.add_callback

    @functools.wraps(original)
    def add_callback(self: Any, callback: Any) -> Any:
        with guard("seeing a callback"):
            prepare(self, callback)
        return original(self, callback)

    kind.add_callback = add_callback


def _give_way(trainer: Any, added: Any) -> None:
    """Take out what we added to a Hugging Face trainer where the script adds one itself."""
    integration = sys.modules.get("tachograph.integrations.transformers")
    kind = integration.TachographCallback if integration is not None else None
    if kind is None or not (isinstance(added, kind) or added is kind):
        return
    for callback in list(trainer.callback_handler.callbacks):
        if isinstance(callback, kind) and callback.run is None:
            trainer.remove_callback(callback)
