"""Writes the model card: the facts of the run that made the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from tachograph._base.files import replace_file
from tachograph.train._config import TrainConfig

__all__ = ["model_card", "write_card"]

_PACKAGES = ("tachograph", "transformers", "torch", "trl", "peft", "datasets")
_HYPER_PARAMETERS = (
    "learning_rate",
    "lr_scheduler",
    "optimizer",
    "weight_decay",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "num_epochs",
    "max_steps",
    "sequence_len",
    "sample_packing",
    "seed",
)
_ADAPTER = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_linear")


def model_card(
    config: TrainConfig,
    facts: Mapping[str, Any],
    metrics: Mapping[str, float],
    plugins: Sequence[Mapping[str, Any]],
) -> str:
    """Return the text of the card.

    Args:
        config: the config.
        facts: facts about the run, by their label.
        metrics: the results.
        plugins: the facts of the plugins, as the session has them.
    """
    method = config.rl or ("sft" if config.pretraining_dataset is None else "pre-training")
    is_hub_id = config.base_model is not None and not config.base_model.startswith((".", "/", "~"))
    header = ["---", f"library_name: {'peft' if config.adapter else 'transformers'}"]
    if is_hub_id:
        header.append(f"base_model: {config.base_model}")
    header += ["tags:", "- tachograph", f"- {method}", "---", ""]
    lines = [*header, f"# {facts.get('run', 'model')}", ""]
    base = config.base_model or "a model with random weights, built from a config"
    extent = (
        f"with {config.adapter.upper() if config.adapter in ('lora', 'qlora') else config.adapter}"
        if config.adapter
        else "in full"
    )
    lines += [f"Trained from `{base}` {extent}, by {str(method).upper()}.", "", "## Data", ""]
    sets = [*config.train_sets(), *config.eval_sets()]
    lines += [f"- `{dataset.path}` ({key}{_kind(dataset.type)})" for key, dataset in sets]
    lines += ["", "## Run", "", "| | |", "|---|---|", *(f"| {label} | {value} |" for label, value in facts.items())]
    lines += ["", "## Results", "", "| metric | value |", "|---|---|"]
    lines += [f"| {name} | {value:.6g} |" for name, value in sorted(metrics.items())]
    names = (*_HYPER_PARAMETERS, *(_ADAPTER if config.adapter else ()), *(("rl_beta",) if config.rl else ()))
    lines += ["", "## Hyper-parameters", "", "| key | value |", "|---|---|"]
    lines += [f"| {name} | {_plain(getattr(config, name))} |" for name in names if getattr(config, name) is not None]
    if plugins:
        lines += ["", "## Plugins", ""]
        for plugin in plugins:
            options = ", ".join(f"{name}={_plain(value)}" for name, value in plugin["options"].items())
            lines.append(f"- {plugin['plugin']}{f' ({options})' if options else ''}")
    lines += ["", "## Versions", "", *(f"- {name} {version}" for name, version in _versions().items())]
    return "\n".join(lines) + "\n"


def _kind(kind: Any) -> str:
    return "" if kind is None else f", {kind}" if isinstance(kind, str) else ", custom"


def _plain(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")[:200]


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def write_card(folder: str, text: str) -> None:
    """Write the card into a folder."""
    replace_file(Path(folder, "README.md"), text.encode(), below=Path(folder))
