"""The plugin: scores the layers of a model, selects the best, freezes the others, and records the choice."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, field_validator
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tachograph._base.guard import guard, warn
from tachograph._base.ranks import group_rank, rank
from tachograph.exceptions import NoRunError, PluginError
from tachograph.plugins._base import BasePlugin, PluginConfig, Slots
from tachograph.plugins.spectrum._files import (
    cache_folder,
    cached_file,
    encode_scores,
    file_of_model,
    read_scores,
    weights_key,
    write_file,
)
from tachograph.plugins.spectrum._progress import ProgressBar
from tachograph.plugins.spectrum._snr import (
    LayerScore,
    layer_of,
    layer_type,
    layer_weights,
    score_layers,
    select_layers,
)
from tachograph.recorder import current_run

__all__ = ["SpectrumOptions", "SpectrumPlugin"]

_RESULT = "spectrum.json"
_FSDP_PREFIX = "_fsdp_wrapped_module."


class SpectrumOptions(BaseModel):
    """The options of Spectrum."""

    spectrum_top_fraction: float = Field(
        0.5, description="The fraction of the layers of each type that is trained, from 0 to 1."
    )
    spectrum_model_name: str | None = Field(
        None, description="The name of the model in the names of files with SNRs; `base_model` by default."
    )
    spectrum_snr_file: str | None = Field(
        None,
        description="A JSON file with SNRs, or a folder with Spectrum's `snr_results_<model name>.json`. "
        "Without it, the SNRs are computed from the weights.",
    )
    spectrum_cache_dir: str | None = Field(
        None, description="The folder of the cache of computed SNRs; an empty text turns the cache off."
    )
    spectrum_method: Literal["auto", "exact", "gram"] = Field(
        "auto",
        description="How singular values are computed: `exact`, by the Gram matrix in 64 bits (`gram`), or `auto`: "
        "`gram` on a GPU and for matrices with both sides longer than 1024.",
    )
    spectrum_device: str | None = Field(
        None, description="The device that computes the SNRs; a GPU if there is one, by default."
    )
    spectrum_train_embeddings: bool = Field(True, description="Whether the input embeddings are trained.")
    spectrum_train_lm_head: bool = Field(True, description="Whether the output layer is trained.")
    spectrum_always_train: list[str] = Field(
        [], description="Regular expressions; parameters whose name contains a match are trained as well."
    )

    @field_validator("spectrum_top_fraction")
    @classmethod
    def _check_fraction(cls, value: float) -> float:
        if not 0 <= value <= 1:
            percent = f" {value:g} % is {value / 100:g}." if 1 < value <= 100 else ""
            raise ValueError(f"must be a fraction from 0 to 1.{percent}")
        return value

    @field_validator("spectrum_always_train")
    @classmethod
    def _check_patterns(cls, value: list[str]) -> list[str]:
        for pattern in value:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
        return value


class SpectrumPlugin(BasePlugin):
    """Trains the layers with the highest signal-to-noise ratio, and freezes the rest."""

    name = "spectrum"
    Options = SpectrumOptions
    slots = (Slots.TRAINABLE_PARAMETERS,)
    measured = (
        "the SNRs of a 7B model, from one of its 32 layers: 0.4 min on an H200, 5 min on 16 CPU cores, "
        "37 min on 2 busy ones; cached afterwards",
        "memory: no gradients and no optimizer state for frozen parameters",
    )

    options: SpectrumOptions

    def __init__(self) -> None:
        self.scores: dict[str, LayerScore] = {}
        self.selected: set[str] = set()
        self._frozen: set[str] = set()
        self._model: Any = None

    def plan(self, cfg: PluginConfig, model: Any) -> list[str]:
        """Return how many layers of each type would be trained."""
        self._check_config(cfg)
        source = self._snr_file(cfg)
        lines = [f"reads SNRs from {source}" if source else "computes SNRs from the weights"]
        if model is None:
            return lines
        self._check_model(model)
        parameters, extra = self._candidates(model)
        scores = self._read_scores(source, model) if source else None
        if scores is None:
            scores = {name: LayerScore(0.0, layer_type(name)) for name in layer_weights(parameters)}
        selected_layers = select_layers(scores, self.options.spectrum_top_fraction)
        trained_names = {name for name in parameters if layer_of(name, selected_layers)} | extra
        if not trained_names:
            raise self._nothing_trains()
        counts: dict[str, list[int]] = {}
        for name, score in scores.items():
            counts.setdefault(score.type, []).append(name in selected_layers)
        lines += [f"{kind}: trains {sum(flags)} of {len(flags)}" for kind, flags in counts.items()]
        sizes = {name: value.numel() for name, value in model.named_parameters()}
        share = sum(sizes[name] for name in trained_names) / sum(sizes.values())
        return [*lines, f"trains about {share:.0%} of all parameters, and freezes the rest"]

    def pre_model_load(self, cfg: PluginConfig) -> None:
        """Check the config and the SNR file before the model is loaded."""
        self._check_config(cfg)
        self._snr_file(cfg)

    def post_model_build(self, cfg: PluginConfig, model: Any) -> None:
        """Score the layers, and freeze all parameters that are not selected."""
        self._check_model(model)
        parameters, extra = self._candidates(model)
        source = self._snr_file(cfg)
        self.scores = self._read_scores(source, model) if source else self._compute_once(cfg, model, parameters)
        self.selected = select_layers(self.scores, self.options.spectrum_top_fraction)
        trained_names = {name for name in parameters if layer_of(name, self.selected)} | extra
        if not trained_names:
            raise self._nothing_trains()
        self._freeze(model, trained_names)

    def post_lora_load(self, cfg: PluginConfig, model: Any) -> None:
        """Check that no adapter was added."""
        self._check_model(model)

    def post_trainer_create(self, cfg: PluginConfig, trainer: Any) -> None:
        """Check that the optimizer does not exist yet, and save the choice next to the checkpoints."""
        if getattr(trainer, "optimizer", None) is not None:
            raise self.error(
                "the optimizer exists already and would keep training frozen parameters (weight decay, momentum): "
                "create the trainer without an optimizer, and call apply before anything creates one"
            )
        if rank() == 0:
            data = encode_scores(self.scores, trained={name: name in self.selected for name in self.scores})
            try:
                write_file(Path(trainer.args.output_dir, _RESULT), data)
            except OSError as error:
                warn(f"plugin spectrum: cannot write {_RESULT}: {error}")
        model = trainer.accelerator.unwrap_model(trainer.model)
        embeddings = model.get_input_embeddings()
        if trainer.args.gradient_checkpointing and not any(value.requires_grad for value in embeddings.parameters()):
            # Re-entrant checkpointing computes no gradients in a block whose inputs need none.
            model.enable_input_require_grads()
            self.patches.on_undo(model.disable_input_require_grads)

    def add_callbacks_post_trainer(self, cfg: PluginConfig, trainer: Any) -> list[Any]:
        """Return the callback that records the SNRs in the run."""
        return [_SpectrumCallback(self)]

    def is_active(self) -> bool:
        """Return whether the parameters that the plugin froze are still frozen."""
        model = self._model() if self._model is not None else None
        if model is None or not self._frozen:
            return False
        is_trained = {
            name.replace(_FSDP_PREFIX, ""): value.requires_grad
            for name, value in model.named_parameters()
            if name.replace(_FSDP_PREFIX, "") in self._frozen
        }
        return bool(is_trained) and not any(is_trained.values())

    # Checks -----------------------------------------------------------------------------------------------------------

    def _check_config(self, cfg: PluginConfig) -> None:
        if cfg.adapter:
            raise self._has_adapter(f"adapter: {cfg.adapter}")
        if cfg.unfrozen_parameters:
            raise self.error(
                "it decides which parameters are trained, and so does `unfrozen_parameters`: remove one of them; "
                "spectrum_always_train adds parameters to the selected ones"
            )

    def _check_model(self, model: Any) -> None:
        if hasattr(model, "peft_config") or any("lora_" in name for name, _ in model.named_parameters()):
            raise self._has_adapter("the model has an adapter")

    def _has_adapter(self, fact: str) -> PluginError:
        return self.error(
            f"{fact}, but Spectrum trains layers of the model itself, and an adapter freezes all of them: "
            f"remove the adapter, or remove spectrum from `plugins`"
        )

    def _nothing_trains(self) -> PluginError:
        return self.error(
            f"no parameter would be trained with spectrum_top_fraction={self.options.spectrum_top_fraction:g}: "
            f"increase it, or set spectrum_train_embeddings, spectrum_train_lm_head or spectrum_always_train"
        )

    def _candidates(self, model: Any) -> tuple[dict[str, torch.Tensor], set[str]]:
        """Return the parameters to rank, and the names of parameters that are trained in any case.

        Embeddings and the output layer are not ranked: each is the only layer of its type. Parameters that are frozen
        already stay frozen.
        """
        options = self.options
        trainable = {name: value for name, value in model.named_parameters() if value.requires_grad}
        if not trainable:
            raise self.error("all parameters of the model are frozen already: nothing is left to choose from")
        names = {id(value): name for name, value in trainable.items()}
        extra: set[str] = set()
        unranked_names: set[str] = set()
        for module, is_trained in (
            (model.get_input_embeddings(), options.spectrum_train_embeddings),
            (model.get_output_embeddings(), options.spectrum_train_lm_head),
        ):
            parameter_names = (
                {names[id(value)] for value in module.parameters() if id(value) in names} if module else set()
            )
            unranked_names |= parameter_names
            extra |= parameter_names if is_trained else set()
        for pattern in options.spectrum_always_train:
            matching = {name for name in trainable if re.search(pattern, name)}
            if not matching:
                raise self.error(
                    f"no trainable parameter matches {pattern!r} of spectrum_always_train; names look like "
                    f"{', '.join(list(trainable)[:3])}"
                )
            extra |= matching
        return {name: value for name, value in trainable.items() if name not in unranked_names}, extra

    # Scores -----------------------------------------------------------------------------------------------------------

    def _snr_file(self, cfg: PluginConfig) -> Path | None:
        file = self.options.spectrum_snr_file
        if not file:
            return None
        path = Path(os.path.expanduser(file))
        if path.is_dir():
            path /= file_of_model(_model_name(self.options, cfg))
        if not path.is_file():
            hint = "set spectrum_model_name to the name of the model that was scanned" if path.parent.is_dir() else ""
            raise self.error(
                f"there is no file {path}: correct spectrum_snr_file, {hint + ', ' if hint else ''}"
                f"or remove spectrum_snr_file to compute the SNRs from the weights"
            )
        return path

    def _read_scores(self, path: Path, model: Any) -> dict[str, LayerScore]:
        """Return the scores of a given file, without the layers that are not ranked."""
        try:
            scores = read_scores(path)
        except (OSError, ValueError) as error:
            raise self.error(f"cannot read {path}: {error}") from error
        names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        model_layers = {layer_of(name, scores) for name in names}
        foreign = [name for name in scores if name not in model_layers and not _is_tied_head(name, names)]
        if foreign:
            raise self.error(
                f"{path} has {len(foreign)} layers that the model does not have, such as {foreign[0]!r}; parameters of "
                f"the model have names like {names[-1]!r}. It belongs to another model: give another file, or remove "
                f"spectrum_snr_file to compute the SNRs from the weights"
            )
        parameters, _ = self._candidates(model)
        ranked_layers = {layer_of(name, scores) for name in parameters}
        missing = [name for name in layer_weights(parameters) if layer_of(name, scores) is None]
        if missing:
            self.report.changed("layers without SNR, frozen", missing)
        return {name: score for name, score in scores.items() if name in ranked_layers}

    def _compute_once(
        self, cfg: PluginConfig, model: Any, parameters: Mapping[str, torch.Tensor]
    ) -> dict[str, LayerScore]:
        """Compute the scores. In a distributed job, only rank 0 computes them: all ranks have the same weights."""
        from torch import distributed

        if group_rank() is None or distributed.get_world_size() == 1:
            return self._compute(cfg, model, parameters)
        result: list[Any] = [None]
        if group_rank() == 0:
            try:
                result = [self._compute(cfg, model, parameters)]
            except Exception as error:  # noqa: BLE001 - the other ranks wait: they must raise as well
                result = [f"{type(error).__name__}: {error}"]
        distributed.broadcast_object_list(result, src=0)
        if isinstance(result[0], str):
            raise self.error(f"rank 0 could not compute the SNRs: {result[0]}")
        scores: dict[str, LayerScore] = result[0]
        return scores

    def _compute(self, cfg: PluginConfig, model: Any, parameters: Mapping[str, torch.Tensor]) -> dict[str, LayerScore]:
        weights = layer_weights(parameters)
        for name, weight in weights.items():
            if weight.device.type == "meta" or weight.numel() == 0:
                raise self.error(
                    f"the weights of {name} are not in memory ({weight.device.type}, shape {tuple(weight.shape)}): "
                    f"compute the SNRs in a process without sharding, and pass them with spectrum_snr_file"
                )
        options = self.options
        path = None
        if options.spectrum_cache_dir != "":
            cache_dir = options.spectrum_cache_dir
            folder = Path(os.path.expanduser(cache_dir)) if cache_dir else cache_folder()
            path = cached_file(folder, weights_key(weights, options.spectrum_method), _model_name(options, cfg, model))
            if path.is_file():
                try:
                    return read_scores(path)
                except (OSError, ValueError) as error:
                    warn(f"plugin spectrum: ignored the damaged cache file {path}: {error}")
        bar = ProgressBar("spectrum: SNR of weights", len(weights)) if rank() == 0 else None
        scores = score_layers(
            weights,
            method=options.spectrum_method,
            device=options.spectrum_device or ("cuda" if torch.cuda.is_available() else None),
            **({"progress": bar.update} if bar else {}),
        )
        if bar:
            bar.finish()
        if path is not None:
            try:
                write_file(path, encode_scores(scores))
            except OSError as error:
                warn(f"plugin spectrum: cannot write the cache of SNRs: {error}; set spectrum_cache_dir")
        return scores

    def _freeze(self, model: Any, trained_names: set[str]) -> None:
        newly_frozen = []
        num_trained = num_all = 0
        for name, value in model.named_parameters():
            num_all += value.numel()
            if name in trained_names:
                num_trained += value.numel()
            elif value.requires_grad:
                value.requires_grad_(False)
                newly_frozen.append(name)
        self._frozen = set(newly_frozen)
        self._model = weakref.ref(model)  # names and not parameters: FSDP replaces them, and they would stay in memory
        reference, names = self._model, self._frozen

        def unfreeze() -> None:
            if (current_model := reference()) is not None:
                for name, value in current_model.named_parameters():
                    if name in names:
                        value.requires_grad_(True)

        self.patches.on_undo(unfreeze)
        self.report.changed("parameters trained", sorted(trained_names))
        if newly_frozen:
            self.report.changed("parameters frozen", newly_frozen)
        else:
            warn(
                f"plugin spectrum: no parameter is frozen with spectrum_top_fraction="
                f"{self.options.spectrum_top_fraction:g}: all are trained"
            )
        self.report.set("trainable_params", num_trained)
        self.report.set("trainable_fraction", num_trained / max(num_all, 1))
        for what, is_selected in (("snr_trained", True), ("snr_frozen", False)):
            values = [score.snr for name, score in self.scores.items() if (name in self.selected) is is_selected]
            finite = [value for value in values if abs(value) < float("inf")]
            if finite:
                self.report.set(what, sum(finite) / len(finite))


class _SpectrumCallback(TrainerCallback):
    """Records the SNR of each layer as a table of the run."""

    def __init__(self, plugin: SpectrumPlugin) -> None:
        self._plugin = plugin

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Record the table."""
        if not state.is_world_process_zero:
            return
        plugin = self._plugin
        with guard("recording the SNR of layers"):
            try:
                run = current_run()
            except NoRunError:
                return
            rows = [
                {"layer": name, "type": score.type, "snr": score.snr, "trained": name in plugin.selected}
                for name, score in plugin.scores.items()
            ]
            run.log_completions(rows, step=state.global_step, table="spectrum")


def _model_name(options: SpectrumOptions, cfg: PluginConfig, model: Any = None) -> str:
    if options.spectrum_model_name:
        return options.spectrum_model_name
    name = str(cfg.base_model or getattr(getattr(model, "config", None), "name_or_path", "") or "model")
    return Path(name).name if name.startswith((".", "/", "~")) or os.path.isdir(name) else name


def _is_tied_head(layer: str, parameters: list[str]) -> bool:
    """Return whether a layer of a file is an output layer that shares its weights with the embeddings."""
    return layer.rpartition(".")[2] in {"lm_head", "embed_out"} and f"{layer}.weight" not in parameters
