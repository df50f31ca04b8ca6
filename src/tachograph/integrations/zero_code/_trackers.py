"""Observes the calls that a script makes to other trackers: W&B, TensorBoard, MLflow, trackio and SwanLab.

Each class that logs is wrapped where it is defined, when its module has been imported. The values of a call are
recorded after it, unless it raised. Calls by the trainers of Hugging Face and Lightning are not recorded: our callbacks
record their values.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import FrameType, ModuleType
from typing import Any

from tachograph.integrations.zero_code._calls import CallObserver, is_in
from tachograph.integrations.zero_code._script_values import ScriptValues

__all__ = ["TrackerHooks", "is_logged_by_trainer"]

_RECORDED_OTHERWISE = ("transformers", "trl", "lightning.pytorch", "pytorch_lightning", "tachograph")
"""Trainers, whose values our callbacks record; and our own exporters, which send recorded values."""
_PLUMBING = (
    "contextlib",
    "functools",
    "lightning.fabric",
    "lightning.pytorch.loggers",
    "lightning_fabric",
    "lightning_utilities",
    "mlflow",
    "pytorch_lightning.loggers",
    "swanlab",
    "tensorboardX",
    "torch.utils.tensorboard",
    "trackio",
    "wandb",
)
"""Modules between a tracker and the code that logs with it."""


_PASSES_METRICS = ("lightning.pytorch.trainer", "pytorch_lightning.trainer")
"""Modules that pass metrics to a logger which our callback of the trainer records under the same names."""


class TrackerHooks:
    """Hooks on the modules of trackers.

    Args:
        values: records the metrics that the script logs.
    """

    def __init__(self, values: ScriptValues) -> None:
        self._values = values
        self._calls = CallObserver("a call to a tracker", _is_recorded_otherwise)

    def hooks(self) -> dict[str, Callable[[ModuleType], None]]:
        """Return the hooks to call when a module has been imported, by its name."""
        return {
            "wandb.sdk.wandb_init": self._observe_init,
            "wandb.sdk.wandb_run": self._wandb_run_imported,
            "wandb.sdk.wandb_config": self._wandb_config_imported,
            "wandb.sdk.wandb_summary": self._wandb_summary_imported,
            "torch.utils.tensorboard.writer": self._writer_imported,
            "tensorboardX.writer": self._writer_imported,
            "mlflow.tracking.client": self._mlflow_imported,
            "trackio": self._observe_init,
            "trackio.run": lambda module: self._observe_log(module.Run, "trackio"),
            "swanlab": self._observe_init,
            "swanlab.sdk.internal.run": lambda module: self._observe_log(module.Run, "swanlab"),
        }

    def _observe_log(self, owner: Any, tool: str) -> None:
        """Observe `log(self, values, step)` of a class."""

        def log(run: Any, values: Mapping[str, Any], step: Any = None, *_: Any, **__: Any) -> Callable[[Any], None]:
            return _after(self._values.log, tool, dict(values), step)

        self._calls.wrap(owner, "log", log)

    def _observe_init(self, module: ModuleType) -> None:
        """Read the config of the run that `init` of a module returns."""
        self._calls.wrap(module, "init", lambda *_, **__: self._read_config)

    def _read_config(self, run: Any) -> None:
        self._add_config(getattr(run, "config", None))

    def _add_config(self, config: Any) -> None:
        """Add a config that maps names to values. Names that begin with an underscore are the tool's own."""
        if config is not None:
            names = [name for name in config.keys() if not str(name).startswith("_")]  # noqa: SIM118 - iterates over items
            self._values.add_config({name: config[name] for name in names})

    # W&B -----------------------------------------------------------------------------------------------------------

    def _wandb_run_imported(self, module: ModuleType) -> None:
        def log(
            run: Any, data: Mapping[str, Any], step: Any = None, commit: Any = None, **_: Any
        ) -> Callable[[Any], None]:
            return _after(self._values.log, "wandb", dict(data), step, own_step=run.step)

        self._calls.wrap(module.Run, "log", log)

    def _wandb_config_imported(self, module: ModuleType) -> None:
        def changed(config: Any, *_: Any, **__: Any) -> Callable[[Any], None]:
            return _after(self._add_config, config)

        for method in ("__setitem__", "__setattr__", "update", "setdefaults"):
            self._calls.wrap(module.Config, method, changed)

    def _wandb_summary_imported(self, module: ModuleType) -> None:
        def update(summary: Any, values: Mapping[str, Any], *_: Any) -> Callable[[Any], None] | None:
            if not isinstance(summary, module.Summary):  # a part of it
                return None
            return _after(self._values.add_summary, "wandb", dict(values))

        def set_item(summary: Any, name: str, value: Any) -> Callable[[Any], None] | None:
            return update(summary, {name: value})

        self._calls.wrap(module.SummaryDict, "update", update)
        self._calls.wrap(module.SummaryDict, "__setitem__", set_item)
        self._calls.wrap(module.SummaryDict, "__setattr__", set_item)

    # TensorBoard ---------------------------------------------------------------------------------------------------

    def _writer_imported(self, module: ModuleType) -> None:
        script, tool = self._values, "tensorboard"

        def add_scalar(writer: Any, tag: str, scalar_value: Any, global_step: Any = None, *_: Any, **__: Any) -> Any:
            return _after(script.log, tool, {tag: scalar_value}, global_step)

        def add_scalars(writer: Any, main_tag: str, tag_scalar_dict: Any, global_step: Any = None, *_: Any) -> Any:
            row = {f"{main_tag}/{name}": value for name, value in tag_scalar_dict.items()}
            return _after(script.log, tool, row, global_step)

        def add_text(writer: Any, tag: str, text_string: str, global_step: Any = None, *_: Any, **__: Any) -> Any:
            return _after(script.add_text, tool, tag, text_string, global_step)

        def add_histogram(writer: Any, tag: str, values: Any, global_step: Any = None, *_: Any, **__: Any) -> Any:
            return _after(script.add_histogram, tool, tag, values, global_step)

        def add_hparams(writer: Any, hparam_dict: Any, metric_dict: Any, *_: Any, **__: Any) -> Any:
            def add(_: Any) -> None:
                script.add_config(hparam_dict)
                script.add_summary(tool, metric_dict)

            return add

        for observe in (add_scalar, add_scalars, add_text, add_histogram, add_hparams):
            self._calls.wrap(module.SummaryWriter, observe.__name__, observe)
        self._observe_media(module.SummaryWriter)
        for name in ("add_embedding", "add_graph"):
            count = _after(script.count_unrecorded, f"{tool}.{name}")
            self._calls.wrap(module.SummaryWriter, name, functools.partial(_always, count))

    def _observe_media(self, writer_class: Any) -> None:
        """Observe the pictures, clips and sounds of a writer. They are converted after its own work."""
        script = self._values

        def record(method: str, tag: str, step: Any, convert: str, *arguments: Any) -> Callable[[Any], None]:
            def add(_: Any) -> None:
                from tachograph.bridges.tensorboard import media_values

                script.log_media("tensorboard", tag, lambda: getattr(media_values, convert)(*arguments), step, method)

            return add

        def add_image(
            writer: Any, tag: str, img_tensor: Any, global_step: Any = None, _: Any = None, dataformats: str = "CHW"
        ) -> Any:
            return record("add_image", tag, global_step, "pictures", img_tensor, dataformats)

        def add_images(
            writer: Any, tag: str, img_tensor: Any, global_step: Any = None, _: Any = None, dataformats: str = "NCHW"
        ) -> Any:
            return record("add_images", tag, global_step, "pictures", img_tensor, dataformats)

        def add_image_with_boxes(
            writer: Any,
            tag: str,
            img_tensor: Any,
            box_tensor: Any,
            global_step: Any = None,
            _walltime: Any = None,
            _rescale: Any = 1,
            dataformats: str = "CHW",
            labels: Any = None,
        ) -> Any:
            method = "add_image_with_boxes"
            return record(method, tag, global_step, "pictures", img_tensor, dataformats, box_tensor, labels)

        def add_figure(writer: Any, tag: str, figure: Any, global_step: Any = None, *_: Any, **__: Any) -> Any:
            return record("add_figure", tag, global_step, "figures", figure)

        def add_video(
            writer: Any, tag: str, vid_tensor: Any, global_step: Any = None, fps: float = 4, *_: Any, **__: Any
        ) -> Any:
            return record("add_video", tag, global_step, "clips", vid_tensor, fps)

        def add_audio(
            writer: Any,
            tag: str,
            snd_tensor: Any,
            global_step: Any = None,
            sample_rate: int = 44100,
            *_: Any,
            **__: Any,
        ) -> Any:
            return record("add_audio", tag, global_step, "sound", snd_tensor, sample_rate)

        def add_mesh(
            writer: Any,
            tag: str,
            vertices: Any,
            colors: Any = None,
            _faces: Any = None,
            _config_dict: Any = None,
            global_step: Any = None,
            *_: Any,
            **__: Any,
        ) -> Any:
            return record("add_mesh", tag, global_step, "points", vertices, colors)

        for observe in (add_image, add_images, add_image_with_boxes, add_figure, add_video, add_audio, add_mesh):
            self._calls.wrap(writer_class, observe.__name__, observe)

    # MLflow --------------------------------------------------------------------------------------------------------

    def _mlflow_imported(self, module: ModuleType) -> None:
        script = self._values

        def log_metric(
            client: Any, run_id: str, key: str, value: Any, timestamp: Any = None, step: Any = None, *_: Any, **__: Any
        ) -> Any:
            return _after(script.log, "mlflow", {key: value}, step or None)

        def log_batch(client: Any, run_id: str, metrics: Any = (), params: Any = (), *_: Any, **__: Any) -> Any:
            rows: dict[Any, dict[str, Any]] = {}
            for metric in metrics or ():
                rows.setdefault(metric.step or None, {})[metric.key] = metric.value
            config = {param.key: _parse(param.value) for param in params or ()}

            def add(_: Any) -> None:
                script.add_config(config)
                for step, row in rows.items():
                    script.log("mlflow", row, step)

            return add

        def log_param(client: Any, run_id: str, key: str, value: Any, *_: Any, **__: Any) -> Any:
            return _after(script.add_config, {key: _parse(value)})

        self._calls.wrap(module.MlflowClient, "log_metric", log_metric)
        self._calls.wrap(module.MlflowClient, "log_batch", log_batch)
        self._calls.wrap(module.MlflowClient, "log_param", log_param)


def _after(function: Callable[..., None], *args: Any, **kwargs: Any) -> Callable[[Any], None]:
    """Return a function of the result of a call that ignores it and calls another one."""
    return lambda _: function(*args, **kwargs)


def _always(record: Callable[[Any], None], *_: Any, **__: Any) -> Callable[[Any], None]:
    return record


def _parse(value: Any) -> Any:
    """Return the number or switch that MLflow keeps as text."""
    from tachograph.records import parse_literal

    return parse_literal(value) if isinstance(value, str) else value


def is_logged_by_trainer() -> bool:
    """Return whether a trainer makes the present call to our `wandb`, with values that our callback records."""
    return is_in(_caller(sys._getframe(1), (*_PLUMBING, "tachograph")), _PASSES_METRICS)


def _is_recorded_otherwise(caller: FrameType) -> bool:
    """Return whether a trainer or our own code makes a call, and not the script or one of its own callbacks."""
    return is_in(_caller(caller, _PLUMBING), _RECORDED_OTHERWISE)


def _caller(frame: FrameType | None, plumbing: tuple[str, ...]) -> str:
    """Return the name of the module that makes a call, which passes through some other modules."""
    while frame is not None:
        module: str = frame.f_globals.get("__name__", "")
        if not is_in(module, plumbing):
            return module
        frame = frame.f_back
    return ""
