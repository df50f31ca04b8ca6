"""Which sinks there are. Loading one imports its third party, at set-up, so that a missing package is told at once."""

from __future__ import annotations

from importlib import import_module

from tachograph.exceptions import ConfigError
from tachograph.sinks._follower import Sink

__all__ = ["SINKS", "load_sink"]

SINKS = {"tensorboard": "TensorBoardSink", "wandb": "WandbSink"}


def load_sink(name: str) -> Sink:
    """Make a sink that the user asked for.

    Raises:
        ConfigError: if its package is not installed, with the command that installs it.
    """
    try:
        sink: Sink = getattr(import_module(f"tachograph.sinks.{name}"), SINKS[name])()
    except ImportError as error:
        raise ConfigError(f"{name}=True needs a package ({error}): pip install 'tachograph[{name}]'") from error
    return sink
