"""SwanLab: send the run of a training to SwanLab, with the options of Axolotl's plugin.

The export itself is the sink `swanlab`, and `SwanLabConfig` checks the options. A run whose config
has these options has the sink already, as in `tacho train`. Otherwise the plugin adds it: to the run that is open when
the plugin is applied, else to the one that exists when training begins. The process of the sink starts before training
in any case, so that a missing key is an error and not a gap.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, model_validator
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tachograph._base import ranks
from tachograph._base.guard import warn
from tachograph._init import add_exports
from tachograph.bridges.swanlab.config import SwanLabConfig
from tachograph.exceptions import ConfigError, NoRunError
from tachograph.plugins._base import BasePlugin, PluginConfig
from tachograph.recorder import Run, current_run
from tachograph.sinks import SinkProcess, start_sinks

__all__ = ["SwanLabOptions", "SwanLabPlugin"]

_SINK = "swanlab"
_CALLBACK = "TachographCallback"


class SwanLabOptions(BaseModel):
    """The options of SwanLab, as `SwanLabConfig` checks them."""

    use_swanlab: bool | None = Field(None, description="`false` turns SwanLab off. Default: on.")
    swanlab_project: str | None = Field(None, description="Project. Required unless SwanLab is off.")
    swanlab_experiment_name: str | None = Field(None, description="Name at SwanLab. Default: the name of the run.")
    swanlab_description: str | None = Field(None, description="Description at SwanLab.")
    swanlab_mode: str | None = Field(None, description="`cloud`, `local`, `offline` or `disabled`.")
    swanlab_workspace: str | None = Field(None, description="User or organization that owns the project.")
    swanlab_api_key: str | None = Field(None, description="Key; better in SWANLAB_API_KEY.")
    swanlab_web_host: str | None = Field(None, description="Address of the pages of a private server.")
    swanlab_api_host: str | None = Field(None, description="Address of a private server.")
    swanlab_log_model: bool | None = Field(None, description="Accepted, without effect.")
    swanlab_lark_webhook_url: str | None = Field(None, description="Address of a Lark bot to notify.")
    swanlab_lark_secret: str | None = Field(None, description="Signing secret of the bot.")
    swanlab_log_completions: bool | None = Field(None, description="Whether to send samples of completions.")
    swanlab_completion_log_interval: int | None = Field(None, description="Steps between two tables of samples.")
    swanlab_completion_max_buffer: int | None = Field(None, description="Maximum number of samples in a table.")

    @model_validator(mode="before")
    @classmethod
    def _check(cls, values: Any) -> Any:
        """Check the values before pydantic does, whose messages would quote a key of the wrong type."""
        if isinstance(values, Mapping):
            _parse(values)
        return values


class SwanLabPlugin(BasePlugin):
    """Sends the run to SwanLab."""

    name = "swanlab"
    Options = SwanLabOptions
    extra = "swanlab"
    needs = ("the package swanlab: tachograph[swanlab]",)

    options: SwanLabOptions

    def __init__(self) -> None:
        self._sinks: list[SinkProcess] = []
        """The process of the sink, until a run gets it."""
        self._is_on = False

    def off_reason(self, cfg: PluginConfig) -> str:
        """Return the option that turns it off."""
        config, _ = self._config()
        if config.is_enabled:
            return ""
        return "use_swanlab is false" if config.use_swanlab is False else "swanlab_mode is disabled"

    def plan(self, cfg: PluginConfig, model: Any) -> list[str]:
        """Return where the run is sent."""
        config, _ = self._config()
        self._check_installed()
        return [f"sends the run to SwanLab: project {config.swanlab_project}, mode {config.swanlab_mode or 'cloud'}"]

    def pre_model_load(self, cfg: PluginConfig) -> None:
        """Start the sink, and add it to the run that is open."""
        config, warnings = self._config()
        self._check_installed()
        self.report.changed("run sent to SwanLab", [f"project {config.swanlab_project}"])
        if ranks.rank() != 0:
            return  # rank 0 records and sends
        for warning in warnings:
            warn("%s", warning)
        run = _open_run()
        if run is not None and run.has_follower(_SINK):
            self._is_on = True
            return
        try:
            self._sinks = start_sinks({_SINK: config.sink_options()})
        except ConfigError as error:
            raise self.error(str(error)) from error
        self.patches.on_undo(self._cancel)
        if run is not None:
            self._add_to(run)

    def add_callbacks_post_trainer(self, cfg: PluginConfig, trainer: Any) -> list[Any]:
        """Return the callback that adds the sink to a run that is started later."""
        return [_RunCallback(self, trainer)] if self._sinks else []

    def find_run(self, *, is_expected: bool) -> bool:
        """Add the sink to the run, if there is one; return whether there is.

        Args:
            is_expected: a run must exist by now.

        Raises:
            PluginError: if it does not.
        """
        run = _open_run()
        if run is not None:
            if run.has_follower(_SINK):  # its config has the options of SwanLab, too
                self._cancel()
                self._is_on = True
            else:
                self._add_to(run)
            return True
        if is_expected:
            raise self.error(
                "nothing is recorded that could be sent: call tachograph.init(...) before training, or pass "
                f"callbacks=[{_CALLBACK}()] to the trainer, and do not set `enabled: false`"
            )
        return False

    def _add_to(self, run: Run) -> None:
        config, _ = self._config()
        sinks, self._sinks = self._sinks, []
        try:
            _check_open_run(run, config)
            add_exports(run, sinks, config.add_to_notify(None))
        except ConfigError as error:
            for sink in sinks:
                sink.cancel()
            raise self.error(str(error)) from error
        self._is_on = True

    def _cancel(self) -> None:
        for sink in self._sinks:
            sink.cancel()
        self._sinks = []

    def is_active(self) -> bool:
        """Return whether a run is sent."""
        return self._is_on

    def _config(self) -> tuple[SwanLabConfig, list[str]]:
        return _parse(self.options.model_dump())

    def _check_installed(self) -> None:
        if importlib.util.find_spec("swanlab") is None:
            raise self.error("the package swanlab is not installed: pip install 'tachograph[swanlab]'")


class _RunCallback(TrainerCallback):
    """Adds the sink to the run that `TachographCallback` starts, before or after this callback is called."""

    def __init__(self, plugin: SwanLabPlugin, trainer: Any) -> None:
        self._plugin = plugin
        self._trainer = trainer
        self._is_found = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Find the run. Without one, a callback that comes later must start it."""
        callbacks = [type(callback).__name__ for callback in self._trainer.callback_handler.callbacks]
        self._is_found = self._plugin.find_run(is_expected=_CALLBACK not in callbacks)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Find the run in the first step."""
        if not self._is_found:
            self._is_found = self._plugin.find_run(is_expected=True)


def _open_run() -> Run | None:
    """Return the run that is recorded, if any."""
    try:
        run = current_run()
    except NoRunError:
        return None
    return run if run.folder is not None else None


def _check_open_run(run: Run, config: SwanLabConfig) -> None:
    """Check that the options can still apply to a run that is open already.

    Raises:
        ConfigError: if one of them cannot.
    """
    if run.folder is None:
        raise ConfigError("the run does not record, so there is nothing to send to SwanLab")
    remedy = "pass the config with the SwanLab options to tachograph.init(config=…)"
    if config.swanlab_completion_log_interval is not None:
        raise ConfigError(f"swanlab_completion_log_interval has no effect on a run that is open already: {remedy}")
    if config.lark_options() and (run.resumed or run.has_follower("notify")):  # else Lark would get old events again
        reason = "continues an earlier one" if run.resumed else "sends notifications already"
        raise ConfigError(f"swanlab_lark_webhook_url: the run is open and {reason}: {remedy}")


def _parse(values: Mapping[str, Any]) -> tuple[SwanLabConfig, list[str]]:
    """Return the options, and warnings. Users who list the plugin want SwanLab, so a project is required."""
    names = SwanLabConfig.__struct_fields__
    options = {name: values[name] for name in names if values.get(name) is not None}
    if options.get("swanlab_mode") != "disabled":
        options.setdefault("use_swanlab", True)
    config, warnings = SwanLabConfig.from_config(options)
    if config.is_enabled and config.swanlab_lark_secret and not config.lark_options():
        raise ConfigError("swanlab_lark_secret has no effect without swanlab_lark_webhook_url: add it")
    return config, warnings
