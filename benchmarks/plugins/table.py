"""The table of all plugins: time per step, peak memory, loss and gradients, with and without each.

    python -m benchmarks.plugins.table [--device cuda] [--output table.md] [--only grokfast liger] [--pairs 3]

Trainings with and without a plugin take turns in the order A B B A …, from the same weights and data, with Hugging
Face's `Trainer`. Ratios have intervals of 99 % from the differences between neighbours. Loss and gradients are compared
at equal weights, as `tacho train --ab` does. A plugin whose packages are missing, or that fails, stays in the table
with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import math
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import TrainerCallback

from tachograph.comparison import EqualWeightsLevel, judge_differences, judge_equal_weights, verdict_text
from tachograph.plugins import PLUGINS, EqualWeightsProbe, apply, built_in_facts

WITHOUT_STEPS = {
    "lm_eval": "evaluates between or after steps",
    "nemo_gym": "waits for its servers",
    "swanlab": "sends the run in another process",
}
"""Plugins that change no step."""


class Sizes(NamedTuple):
    """The sizes of models and batches on a device."""

    hidden: int
    layers: int
    vocabulary: int
    rows: int
    tokens: int
    num_experts: int
    steps: int
    warmup: int


SIZES = {
    "cpu": Sizes(64, 2, 512, 2, 32, 8, 8, 3),  # only to try the script
    "cuda": Sizes(1024, 8, 128_256, 8, 1024, 64, 20, 5),
}


class Case(NamedTuple):
    """A plugin to measure.

    Args:
        options: the options of the plugin.
        model: the kind of model: `dense`, `sparse` (half of the weights zero) or `experts`.
        needs: returns further options, such as the path of a teacher, which is written to a folder.
    """

    options: Mapping[str, Any] = {}
    model: str = "dense"
    needs: Callable[[Path, str], Mapping[str, Any]] | None = None


def make_teacher(folder: Path, device: str) -> Mapping[str, Any]:
    path = folder / "teacher"
    build_model("dense", device, seed=1).save_pretrained(path)
    return {"kd_teacher": str(path)}


def own_cache(folder: Path, device: str) -> Mapping[str, Any]:
    return {"spectrum_cache_dir": str(folder)}


RECIPE = {
    "finetuning_stage": {
        "finetuning_modifiers": {
            "ConstantPruningModifier": {"targets": ["re:.*_proj.weight"], "start": 0},
        }
    }
}
CASES = {
    "cut_cross_entropy": Case(),
    "densemixer": Case({"dense_mixer": True}, "experts"),
    "diffusion": Case({"diffusion": {"generate_samples": False, "mask_token_id": 3}}),
    "grokfast": Case(),
    "kd": Case({"kd_ce_alpha": 0.5}, needs=make_teacher),
    "kernels": Case({"use_scattermoe": True}, "experts"),
    "liger": Case(
        {
            "liger_rope": True,
            "liger_rms_norm": True,
            "liger_glu_activation": True,
            "liger_fused_linear_cross_entropy": True,
        }
    ),
    "llm_compressor": Case({"llmcompressor": {"recipe": RECIPE}}, "sparse"),
    "spectrum": Case({"spectrum_top_fraction": 0.5}, needs=own_cache),
}


def build_model(kind: str, device: str, seed: int = 0) -> Any:
    """Return a model with random weights; the same for the same seed."""
    sizes = SIZES[device]
    torch.manual_seed(seed)
    common = {
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": max(2, sizes.hidden // 128),
        "num_key_value_heads": max(2, sizes.hidden // 128),
        "max_position_embeddings": sizes.tokens,
        "use_cache": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    with torch.device(device):
        if kind == "experts":
            config = transformers.Qwen3MoeConfig(
                **{**common, "num_hidden_layers": sizes.layers // 2, "vocab_size": sizes.vocabulary // 4},
                num_experts=sizes.num_experts,
                num_experts_per_tok=min(8, sizes.num_experts // 2),
                moe_intermediate_size=sizes.hidden // 2,
                head_dim=max(16, sizes.hidden // 16),
            )
            model: Any = transformers.Qwen3MoeForCausalLM(config)
        else:
            config = transformers.LlamaConfig(**common, intermediate_size=3 * sizes.hidden)
            model = transformers.LlamaForCausalLM(config)
    model = model.to(torch.bfloat16 if device == "cuda" else torch.float32)
    if kind == "sparse":
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "_proj" in name:
                    groups = weight.view(-1, 4)
                    groups.scatter_(1, groups.abs().topk(2, largest=False).indices, 0.0)
    return model


def shape_of(model: Any, device: str) -> str:
    """Return the shape of a model and its batches in words."""
    sizes, config = SIZES[device], model.config
    num_parameters = sum(weight.numel() for weight in model.parameters())
    experts = (
        f", {config.num_experts} experts (top {config.num_experts_per_tok})" if hasattr(config, "num_experts") else ""
    )
    return (
        f"{config.model_type}{experts}, {config.num_hidden_layers} layers of {config.hidden_size}, vocabulary "
        f"{config.vocab_size:,}, {num_parameters / 1e6:.0f} M parameters; {sizes.rows} × {sizes.tokens} tokens"
    )


class StepClock(TrainerCallback):
    """Times steps, each until the device has finished."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._start_s = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._start_s = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self._start_s)


@functools.cache
def build_tokenizer(size: int) -> Any:
    """Return a tokenizer, which some plugins read."""
    from tokenizers import Tokenizer, models

    vocabulary = {f"<{number}>": number for number in range(size)}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<0>")),
        pad_token="<0>",
        bos_token="<1>",
        eos_token="<2>",
    )


def build_trainer(case: Case, device: str, folder: Path) -> Any:
    sizes = SIZES[device]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, sizes.vocabulary // 4, (sizes.rows * (sizes.steps + 1), sizes.tokens), generator=generator)
    rows = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in ids]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = transformers.TrainingArguments(
            output_dir=str(folder / "out"),
            per_device_train_batch_size=sizes.rows,
            max_steps=sizes.steps,
            learning_rate=1e-4,
            logging_steps=10_000,
            save_strategy="no",
            report_to="none",
            use_cpu=device == "cpu",
            bf16=device == "cuda",
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(model=build_model(case.model, device), args=args, train_dataset=rows)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.processing_class = build_tokenizer(sizes.vocabulary)
    return trainer


@contextlib.contextmanager
def training(plugin: str | None, case: Case, options: Mapping[str, Any], device: str, folder: Path) -> Iterator[Any]:
    """A trainer with or without the plugin; afterwards, everything is released."""
    trainer = build_trainer(case, device, folder)
    applied_plugins = apply(trainer, [plugin], options) if plugin is not None else None
    try:
        yield trainer
    finally:
        if applied_plugins is not None:
            applied_plugins.undo()
        del trainer, applied_plugins
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


class Measurement(NamedTuple):
    """A training."""

    step_s: float
    peak_bytes: float


def train(plugin: str | None, case: Case, options: Mapping[str, Any], device: str, folder: Path) -> Measurement:
    with training(plugin, case, options, device, folder) as trainer:
        clock = StepClock()
        trainer.add_callback(clock)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        trainer.train()
        peak = float(torch.cuda.max_memory_allocated()) if device == "cuda" else math.nan
    return Measurement(statistics.median(clock.seconds[SIZES[device].warmup :]), peak)


def compare(plugin: str, device: str, num_pairs: int) -> list[str]:
    """Measure a plugin; return the cells of its row."""
    case = CASES[plugin]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = {**case.options, **(case.needs(folder, device) if case.needs is not None else {})}
        for is_reference in (True, False):
            probe = EqualWeightsProbe(folder, is_reference=is_reference, num_held=1, num_free=3)
            with training(None if is_reference else plugin, case, options, device, folder) as trainer:
                shape = shape_of(trainer.model, device)
                probe.attach(trainer)
                trainer.train()
        pairs = []
        for number in range(num_pairs):
            order = (None, plugin) if number % 2 == 0 else (plugin, None)
            measured = {arm: train(arm, case, options, device, folder) for arm in order}
            pairs.append((measured[None], measured[plugin]))
    levels = [
        EqualWeightsLevel("loss", "loss", (0, 0), [step.loss for step in probe.differences]),
        EqualWeightsLevel(
            "gradient", "gradient", (0, 0), [step.gradient for step in probe.differences], is_gradient=True
        ),
    ]
    precision = "bfloat16" if device == "cuda" else "float32"
    verdicts = [judge_equal_weights(level, precision) for level in levels]
    return [
        plugin,
        shape,
        *_ratio([(without.step_s, with_.step_s) for without, with_ in pairs], 1e3, "ms", ("slower", "faster")),
        *_ratio([(without.peak_bytes, with_.peak_bytes) for without, with_ in pairs], 2**-30, "GiB", ("more", "less")),
        *(
            f"{verdict.effect:.1e}, {verdict_text(verdict)}" if verdict.effect is not None else "–"
            for verdict in verdicts
        ),
        "; ".join(probe.notes) or "–",
    ]


def _ratio(pairs: list[tuple[float, float]], scale: float, unit: str, words: tuple[str, str]) -> list[str]:
    """Return both levels, and their ratio with its interval and verdict."""
    if any(math.isnan(value) for pair in pairs for value in pair):
        return ["–", "–"]
    levels = [statistics.median(pair[side] for pair in pairs) * scale for side in (0, 1)]
    judgement = judge_differences([math.log(second / first) for first, second in pairs], 0.01)
    low, middle, high = (math.exp(value) for value in (judgement.low, judgement.difference, judgement.high))
    verdict = {"higher": words[0], "lower": words[1], "equal": "equal", "unknown": "not enough evidence"}
    return [
        f"{levels[0]:.4g} → {levels[1]:.4g} {unit}",
        f"{middle:.3f}× ({low:.3f}…{high:.3f}), {verdict[judgement.direction]}",
    ]


HEADER = ["plugin", "model", "time per step", "ratio", "peak memory", "ratio", "loss", "gradients", "notes"]


def main() -> None:
    """Measure all plugins and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(SIZES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=Path("plugins_table.md"))
    parser.add_argument("--only", nargs="*", default=list(PLUGINS.built_in), metavar="PLUGIN")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--budget-s", type=float, default=270.0, help="start no further plugin after this time")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    start_s = time.monotonic()
    rows: list[list[str]] = []
    left_out: list[str] = []
    where = torch.cuda.get_device_name() if arguments.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    for plugin in arguments.only:
        missing = built_in_facts(plugin).missing if plugin in PLUGINS.built_in else []
        reason = ""
        if plugin in WITHOUT_STEPS:
            reason = f"not measured: {WITHOUT_STEPS[plugin]}"
        elif plugin not in CASES or plugin not in PLUGINS.built_in:
            reason = "not measured: no case in benchmarks/plugins/table.py"
        elif missing:
            reason = f"not measured: {', '.join(missing)} is not installed"
        elif time.monotonic() - start_s > arguments.budget_s:
            reason = "not measured: no time left"
        else:
            began_s = time.monotonic()
            try:
                rows.append(compare(plugin, arguments.device, arguments.pairs))
                print(f"{' | '.join(rows[-1])}   [{time.monotonic() - began_s:.0f} s]", flush=True)
            except Exception as error:  # the others are still measured
                traceback.print_exc(file=sys.stdout)
                reason = f"failed: {type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
        if reason:
            left_out.append(f"{plugin}: {reason}")
            print(left_out[-1], flush=True)
        _write(arguments.output, where, rows, left_out)
    print(f"{time.monotonic() - start_s:.0f} s, written to {arguments.output}")


def _write(path: Path, where: str, rows: list[list[str]], left_out: list[str]) -> None:
    precision = "" if where.startswith("CPU") else ", bfloat16"
    lines = [
        f"{where}, torch {torch.__version__}, transformers {transformers.__version__}{precision}, AdamW. Trainings "
        "take turns; intervals of 99 %. Loss and gradients: the largest relative difference at equal weights.",
        "",
        "| " + " | ".join(HEADER) + " |",
        "|" + "---|" * len(HEADER),
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows),
        "",
        *(f"- {line}" for line in left_out),
    ]
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
