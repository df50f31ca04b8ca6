"""`TachographPlugin`: the hooks of an Axolotl plugin.

Which hook does what, in the order in which Axolotl calls them:

| hook | |
|---|---|
| `register` | check the options, before anything is loaded |
| `get_input_args` | name the class with our fields |
| `load_datasets` | the start of the time for the data; loads nothing itself |
| `pre_model_load`, `post_model_load` | the time for a model: called twice if there is a reference model |
| `add_callbacks_pre_trainer` | create the `TachographCallback`, which starts the run and records training |
| `on_rollouts_scored` | samples of the trainer that generates while it trains, in which nothing else can be captured |
| `post_train` | called after training, and again after the model was saved |
| `post_train_unload` | finish the run |

Axolotl creates a new plugin for each config that it loads, and keeps plugins that a later config of the process does
not list. So the current training belongs to the class, and every hook asks whether the config lists the plugin.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any, ClassVar

try:
    from axolotl.integrations.base import BasePlugin
except ModuleNotFoundError as error:
    raise ImportError(
        f"TachographPlugin needs Axolotl ({error}): pip install axolotl. To record another trainer, use "
        "tachograph.integrations.transformers.TachographCallback"
    ) from error

from tachograph._base import ranks
from tachograph._base.guard import guard, warn
from tachograph.integrations.axolotl._options import (
    check_fields,
    check_swanlab,
    is_listed,
    leaves_swanlab,
    read_options,
    run_config,
)
from tachograph.integrations.transformers import TachographCallback
from tachograph.spans import SpanScope, dataloader_init, model_init, timed_span

__all__ = ["TachographPlugin"]

_FACTS = ("adapter", "rl", "sequence_len", "sample_packing")


class _Training:
    """One training, from its first hook to the end of its run."""

    def __init__(self) -> None:
        self.callback: TachographCallback | None = None
        self.spans: list[tuple[SpanScope, float, float]] = []
        """Spans from before the callback exists."""
        self.data_start_s: float | None = None
        self.model_start_s: float | None = None
        self.train_end_s: float | None = None
        self.is_complete = False
        """Whether the model was trained and saved."""

    def finish(self, error: BaseException | None) -> None:
        """Finish the run, if there is one."""
        if self.callback is not None:
            self.callback.finish(error)


class TachographPlugin(BasePlugin):
    """Records an Axolotl training: ``plugins: [tachograph.integrations.axolotl.TachographPlugin]``.

    The fields `tachograph_<setting>` of the config set any setting of the run, and also its name, tags and
    notifications. The fields of SwanLab, such as `swanlab_project`, send the run to SwanLab, unless the config lists
    Axolotl's own plugin for it.
    """

    _training: ClassVar[_Training | None] = None

    def __init__(self) -> None:
        super().__init__()
        self._leaves_swanlab = False

    def register(self, cfg: Any) -> None:
        """Check the options.

        Raises:
            ConfigError: for an unknown `tachograph_` key or an invalid value.
        """
        self._leaves_swanlab = leaves_swanlab(cfg)
        if not is_listed(type(self).__name__, cfg):
            return
        check_fields(cfg)
        if not self._leaves_swanlab:
            check_swanlab(cfg)
        elif ranks.rank() == 0:
            warn("the config lists Axolotl's SwanLabPlugin, so Tachograph leaves the swanlab_ options to that plugin")

    def get_input_args(self) -> str:
        """Return the class with the fields of the config."""
        return f"{__package__}.{'TachographArgs' if self._leaves_swanlab else 'TachographSwanLabArgs'}"

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> None:
        """Keep the time at which Axolotl starts to load the datasets of a training."""
        if self._records(cfg) and not preprocess:
            with guard("starting to record Axolotl"):
                self._begin().data_start_s = perf_counter()

    def pre_model_load(self, cfg: Any) -> None:
        """Keep the time at which loading a model starts, which is also when the datasets are loaded."""
        if self._records(cfg):
            with guard("timing the loading of a model"):
                training, now_s = self._current(), perf_counter()
                if training.data_start_s is not None:
                    training.spans.append((dataloader_init(), training.data_start_s, now_s))
                    training.data_start_s = None
                training.model_start_s = now_s

    def post_model_load(self, cfg: Any, model: Any) -> None:
        """Keep the time that loading a model took."""
        if self._records(cfg):
            with guard("timing the loading of a model"):
                training = self._current()
                if training.model_start_s is not None:
                    training.spans.append((model_init(), training.model_start_s, perf_counter()))
                    training.model_start_s = None

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> list[Any]:
        """Return the callback that records training.

        Raises:
            ConfigError: for an invalid option.
        """
        if not self._records(cfg):
            return []
        training = self._current()
        spans, training.spans = training.spans, []
        if training.callback is not None:  # Axolotl's `train` was called on its own, a second time
            training = self._begin()
        options = read_options(cfg)
        callback = TachographCallback(options.name, **options.arguments)
        callback.extra_config = run_config(cfg)
        callback.extra_facts = _facts(cfg)
        for span in spans:
            callback.add_span(*span)
        training.callback = callback
        return [callback]

    def on_rollouts_scored(
        self,
        cfg: Any,
        trainer: Any,
        prompts: list[str],
        completions: list[str],
        rewards: dict[str, list[float]],
        advantages: list[float],
    ) -> None:
        """Record samples of the trainer that generates completions while it trains."""
        training = type(self)._training
        if training is not None and training.callback is not None:
            training.callback.add_scored_completions(prompts, completions, rewards, advantages)

    def post_train(self, cfg: Any, model: Any) -> None:
        """Record the time between the end of training and the end of saving the model."""
        training = type(self)._training
        if training is None or training.callback is None or not self._records(cfg):
            return
        with guard("recording the end of an Axolotl training"):
            now_s = perf_counter()
            if training.train_end_s is None:
                training.train_end_s = now_s
            elif not training.is_complete:
                training.callback.add_span(timed_span("model_save"), training.train_end_s, now_s)
                training.is_complete = True

    def post_train_unload(self, cfg: Any) -> None:
        """Finish the run. Newer versions of Axolotl call this also while an exception propagates."""
        training = type(self)._training
        if training is None or not self._records(cfg):
            return
        with guard("finishing the run of an Axolotl training"):
            error = None if training.is_complete else sys.exc_info()[1]
            # Ctrl-C and the like end the process, and the run with it.
            if error is None or isinstance(error, Exception):
                training.finish(error)
            type(self)._training = None

    def _records(self, cfg: Any) -> bool:
        return is_listed(type(self).__name__, cfg) and read_options(cfg).enabled

    def _current(self) -> _Training:
        return type(self)._training or self._begin()

    def _begin(self) -> _Training:
        """Start another training. If the one before was not unloaded, its run ends here."""
        if (before := type(self)._training) is not None:
            with guard("finishing the run of an Axolotl training"):
                is_failed = before.callback is not None and before.callback.is_training
                before.finish(RuntimeError("training ended with an exception") if is_failed else None)
        training = type(self)._training = _Training()
        return training


def _facts(cfg: Any) -> dict[str, Any]:
    try:
        axolotl: str | None = version("axolotl")
    except PackageNotFoundError:  # a checkout that is not installed
        axolotl = None
    facts = {"axolotl_version": axolotl, **{name: cfg.get(name) for name in _FACTS}}
    return {
        name: str(getattr(value, "value", value)) if name == "rl" else value
        for name, value in facts.items()
        if value is not None
    }
