"""The part of a config that concerns the recorded run: its name, its settings and its sinks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tachograph._base.settings import parse_sinks
from tachograph.exceptions import ConfigError
from tachograph.train._config import TrainConfig

__all__ = ["recorded_config", "run_name"]


def run_name(config: TrainConfig) -> str:
    """Return the name of the run: the name in the config, else the name of the output folder."""
    return (
        config.name
        or config.wandb_name
        or config.mlflow_run_name
        or config.wandb_run_id
        or os.path.basename(os.path.abspath(config.output_dir))
    )


def recorded_config(values: Mapping[str, Any], config: TrainConfig) -> dict[str, Any]:
    """Return the config as the run records it, with the keys of other tools translated to sinks.

    Raises:
        ConfigError: if the sinks of the section `telemetry` are invalid.
    """
    section = dict(config.telemetry)
    sinks = parse_sinks(section.get("sinks", []), "telemetry.sinks")
    for name, options in _sinks(config).items():
        set_options = {key: value for key, value in options.items() if value}
        sinks[name] = {**set_options, **sinks.get(name, {})}
    if sinks:
        section["sinks"] = [{name: options} for name, options in sinks.items()]
    return {**values, "telemetry": section}


def _sinks(config: TrainConfig) -> dict[str, dict[str, Any]]:
    sinks: dict[str, dict[str, Any]] = {}
    uses_wandb = bool(config.wandb_project) if config.use_wandb is None else config.use_wandb
    if uses_wandb and config.wandb_mode != "disabled":
        sinks["wandb"] = {"project": config.wandb_project, "entity": config.wandb_entity, "mode": config.wandb_mode}
    uses_mlflow = bool(config.mlflow_tracking_uri) if config.use_mlflow is None else config.use_mlflow
    if uses_mlflow:
        sinks["mlflow"] = {"tracking_uri": config.mlflow_tracking_uri, "experiment": config.mlflow_experiment_name}
    if config.use_tensorboard:
        sinks["tensorboard"] = {}
    if config.use_swanlab and not config.swanlab_project:
        raise ConfigError("use_swanlab is true, but swanlab_project is missing: add `swanlab_project: my-project`")
    return sinks
