"""Samples from real TRL trainers: tiny models, a few steps, compared with the metrics of the trainers themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback  # noqa: E402

import tachograph  # noqa: E402
from tachograph.exceptions import ConfigError  # noqa: E402
from tachograph.integrations.trl import CompletionCapture, capture_completions  # noqa: E402
from tachograph.integrations.trl._samples import EXTRACTORS  # noqa: E402

pytestmark = [
    pytest.mark.xdist_group("transformers"),
    pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'"),
]

OPTIONS: dict[str, Any] = {"console": False, "system_interval_s": 0, "git": False}
WORDS = "<pad> <eos> <unk> two plus three is five six blue sky what colour the grey".split()
PAIRS = [
    {"prompt": "what is two plus three", "chosen": " five", "rejected": " six six"},
    {"prompt": "what colour is the sky", "chosen": " blue blue", "rejected": " three grey"},
] * 6
SINGLE = [
    {"prompt": pair["prompt"], "completion": pair[answer], "label": answer == "chosen"}
    for pair in PAIRS
    for answer in ("chosen", "rejected")
]


@pytest.fixture(autouse=True)
def few_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", bos_token="<eos>", unk_token="<unk>"
    )


def model(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    return LlamaForCausalLM(config)


def length(completions: list[str], **_: Any) -> list[float]:
    return [float(len(completion.split())) for completion in completions]


def every_other(completions: list[str], log_extra: Callable[..., None] | None = None, **_: Any) -> list[float | None]:
    if log_extra is not None:
        log_extra("words", [completion.count(" ") for completion in completions])
    return [None if index % 2 else 1.0 for index in range(len(completions))]


def build(kind: str, folder: Path, *, peft: bool = False, **more: Any) -> Any:
    """Return a trainer that runs a few steps on the CPU."""
    import trl
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    options = {"max_steps": 6, "per_device_train_batch_size": 2, "logging_steps": 1, "learning_rate": 1e-2, **more}
    options |= {"output_dir": str(folder), "report_to": "none", "save_strategy": "no", "use_cpu": True, "seed": 7}
    options["disable_tqdm"] = True
    generation = {"num_generations": 2, "max_completion_length": 4, "beta": 0.0}
    given: dict[str, Any] = {"processing_class": tokenizer()}
    if peft:
        from peft import LoraConfig

        given["peft_config"] = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    reference = {} if peft else {"ref_model": model(1)}  # another model, so that rewards are not zero
    pairs, prompts = Dataset.from_list(PAIRS), Dataset.from_list([{"prompt": pair["prompt"]} for pair in PAIRS])
    match kind:
        case "sft":
            data = Dataset.from_list([{"prompt": row["prompt"], "completion": row["completion"]} for row in SINGLE])
            return trl.SFTTrainer(model(), args=trl.SFTConfig(**options), train_dataset=data, **given)
        case "dpo":
            return trl.DPOTrainer(model(), args=trl.DPOConfig(**options), train_dataset=pairs, **given, **reference)
        case "kto":
            data = Dataset.from_list(SINGLE)
            return trl.KTOTrainer(model(), args=trl.KTOConfig(**options), train_dataset=data, **given, **reference)
        case "orpo":
            return ORPOTrainer(model(), args=ORPOConfig(**options), train_dataset=pairs, **given)
        case "cpo":
            return CPOTrainer(model(), args=CPOConfig(**options), train_dataset=pairs, **given)
        case "grpo":
            args = trl.GRPOConfig(**options, **generation, reward_weights=[1.0, 0.5])
            functions = [length, every_other]
            return trl.GRPOTrainer(model(), reward_funcs=functions, args=args, train_dataset=prompts, **given)
        case "rloo":
            args = trl.RLOOConfig(**options, **generation)
            return trl.RLOOTrainer(model(), reward_funcs=[length], args=args, train_dataset=prompts, **given)
    raise AssertionError(kind)


class Watcher(TrainerCallback):
    """Drives a capture as `TachographCallback` does, without recording anything else."""

    def __init__(self, trainer: Any, run: tachograph.Run, **options: Any) -> None:
        self.trainer, self.run, self.options = trainer, run, options
        self.capture: CompletionCapture | None = None

    def on_train_begin(self, args, state, control, **_):
        self.capture = capture_completions(self.trainer, self.run, **self.options)

    def on_step_end(self, args, state, control, **_):
        if self.capture:
            self.capture.on_step_end(state.global_step)

    def on_log(self, args, state, control, **_):
        if self.capture:
            self.capture.on_log(state.global_step)

    def on_train_end(self, args, state, control, **_):
        if self.capture:
            self.capture.close()


def train(trainer: Any, logs: Path, **options: Any) -> tachograph.RunHistory:
    with tachograph.init("run", log_dir=str(logs), **OPTIONS) as run:
        trainer.add_callback(Watcher(trainer, run, **options))
        trainer.train()
    return tachograph.read(logs / "run")


def logged(trainer: Any, name: str) -> dict[int, float]:
    """Return the values that the trainer logged under a name, by step."""
    return {entry["step"]: entry[name] for entry in trainer.state.log_history if name in entry}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def by_step(rows: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    return {step: [row for row in rows if row["step"] == step] for step in sorted({row["step"] for row in rows})}


KINDS = ["sft", "dpo", "kto", "orpo", "cpo", "grpo", "rloo"]
COLUMNS = {
    "sft": ["step", "prompt", "completion"],
    "dpo": ["step", "prompt", "chosen", "rejected", "chosen_reward", "rejected_reward", "margin"],
    "kto": ["step", "prompt", "completion", "label", "reward"],
    "orpo": ["step", "prompt", "chosen", "rejected", "log_odds_ratio", "chosen_reward", "rejected_reward", "margin"],
    "cpo": ["step", "prompt", "chosen", "rejected", "chosen_reward", "rejected_reward", "margin"],
    "grpo": [
        *("step", "prompt", "completion", "reward", "rewards/length", "rewards/every_other", "advantage", "words")
    ],
    "rloo": ["step", "prompt", "completion", "reward", "rewards/length", "advantage"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_trainer_records_its_samples(kind, tmp_path, logs):
    trainer = build(kind, tmp_path)
    before = dict(vars(trainer))
    history = train(trainer, logs, every=1)
    records = list(history.records("completions"))
    assert [record["global_step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert all(record["columns"] == COLUMNS[kind] for record in records)
    rows = history.completions()
    assert all(row.keys() == set(COLUMNS[kind]) for row in rows)
    assert all(len(of_step) == 2 for of_step in by_step(rows).values())  # the whole batch
    prompts = {pair["prompt"] for pair in PAIRS}
    assert {row["prompt"].removeprefix("<eos> ") for row in rows} <= prompts
    assert list(history.records("telemetry_error")) == []
    assert not {"compute_loss", "_generate_and_score_completions"} & (vars(trainer).keys() - before.keys())


@pytest.mark.parametrize("kind", ["dpo", "orpo", "cpo"])
def test_pair_rewards_match_reported_metrics(kind, tmp_path, logs):
    trainer = build(kind, tmp_path)
    rows = by_step(train(trainer, logs, every=1).completions())
    for name, column in (("chosen", "chosen_reward"), ("rejected", "rejected_reward"), ("margins", "margin")):
        known = logged(trainer, f"rewards/{name}")
        assert known.keys() == rows.keys()
        for step, of_step in rows.items():
            assert mean([row[column] for row in of_step]) == pytest.approx(known[step], rel=1e-5, abs=1e-7)
    assert len({row["margin"] for of_step in rows.values() for row in of_step}) > 4
    if kind == "orpo":
        known = logged(trainer, "log_odds_ratio")
        for step, of_step in rows.items():
            assert mean([row["log_odds_ratio"] for row in of_step]) == pytest.approx(known[step], rel=1e-5)
    answers = {(pair["chosen"].strip(), pair["rejected"].strip()) for pair in PAIRS}
    for of_step in rows.values():
        assert {(row["chosen"][: -len(" <eos>")], row["rejected"][: -len(" <eos>")]) for row in of_step} <= answers


@pytest.mark.parametrize("peft", [False, True], ids=["whole", "adapter"])
@pytest.mark.parametrize("precomputed", [False, True], ids=["", "precomputed"])
def test_kto_rewards_match_reported_metrics(peft, precomputed, tmp_path, logs):
    trainer = build("kto", tmp_path, peft=peft, precompute_ref_log_probs=precomputed)
    rows = by_step(train(trainer, logs, every=1).completions())
    answers = {(row["prompt"], row["completion"].strip(), row["label"]) for row in SINGLE}
    for step, of_step in rows.items():
        for label, name in (("desirable", "chosen"), ("undesirable", "rejected")):
            known = logged(trainer, f"rewards/{name}").get(step)
            rewards = [row["reward"] for row in of_step if row["label"] == label]
            assert (known is None) is (not rewards)
            if rewards:
                assert mean(rewards) == pytest.approx(known, rel=1e-4, abs=1e-6)
        for row in of_step:
            assert (row["prompt"], row["completion"].removesuffix(" <eos>"), row["label"] == "desirable") in answers
    assert any(row["reward"] for of_step in rows.values() for row in of_step)


def test_dpo_with_adapter_instead_of_reference_model(tmp_path, logs):
    trainer = build("dpo", tmp_path, peft=True)
    rows = by_step(train(trainer, logs, every=1).completions())
    known = logged(trainer, "rewards/margins")
    for step, of_step in rows.items():
        assert mean([row["margin"] for row in of_step]) == pytest.approx(known[step], rel=1e-4, abs=1e-6)


def test_grpo_rewards_match_reported_metrics(tmp_path, logs):
    trainer = build("grpo", tmp_path, per_device_train_batch_size=4)
    rows = by_step(train(trainer, logs, every=1).completions())
    for step, of_step in rows.items():
        assert len(of_step) == 4
        assert of_step[0]["prompt"] == of_step[1]["prompt"]  # a whole group
        assert mean([row["reward"] for row in of_step]) == pytest.approx(logged(trainer, "reward")[step])
        lengths = [row["rewards/length"] for row in of_step]
        assert mean(lengths) == pytest.approx(logged(trainer, "rewards/length/mean")[step])
        assert sum(row["advantage"] for row in of_step) == pytest.approx(0.0, abs=1e-5)
        for row in of_step:
            other = row["rewards/every_other"]
            assert row["reward"] == row["rewards/length"] + (0.0 if math.isnan(other) else 0.5 * other)
            assert row["words"] == row["completion"].count(" ")
        assert [math.isnan(row["rewards/every_other"]) for row in of_step] == [False, True, False, True]


def test_scored_completions_are_recorded_with_weights(tmp_path, logs):
    """As a trainer reports them that generates in a thread of its own, whatever mode the model is in."""
    trainer = build("grpo", tmp_path)
    trainer.model.eval()
    with tachograph.init("x", log_dir=str(logs), **OPTIONS) as run:
        capture = capture_completions(trainer, run, every=1)
        rewards = {"length": [2.0, 1.0], "every_other": [1.0, math.nan]}
        capture.add_scored(["what", "what"], ["two plus", "five"], rewards, [0.5, -0.5])
        capture.close()
    (record,) = tachograph.read(logs / "x").records("completions")
    first, second = record["rows"]
    assert (first["prompt"], first["completion"], first["reward"], first["advantage"]) == ("what", "two plus", 2.5, 0.5)
    assert (second["completion"], second["reward"], second["rewards/length"]) == ("five", 1.0, 1.0)


def test_texts_keep_special_tokens(tmp_path, logs):
    rows = train(build("sft", tmp_path), logs, every=1).completions()
    known = {(row["prompt"], f"{row['completion'].strip()} <eos>") for row in SINGLE}
    assert {(row["prompt"], row["completion"]) for row in rows} <= known


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_bit_identical(kind, tmp_path, logs):
    def result(*, is_watched: bool) -> tuple[dict[str, Any], Any, list[Any]]:
        torch.manual_seed(3)
        trainer = build(kind, tmp_path / str(is_watched), gradient_accumulation_steps=2)
        if is_watched:
            assert train(trainer, logs, every=2).completions()
        else:
            trainer.train()
        history = [
            {name: value for name, value in entry.items() if "time" not in name and "per_second" not in name}
            for entry in trainer.state.log_history
        ]
        return trainer.model.state_dict(), torch.get_rng_state(), history

    plain, watched = result(is_watched=False), result(is_watched=True)
    assert plain[0].keys() == watched[0].keys()
    for name, weights in plain[0].items():
        assert torch.equal(weights, watched[0][name]), name
    assert torch.equal(plain[1], watched[1])
    assert repr(plain[2]) == repr(watched[2])
    assert not torch.equal(plain[0]["model.embed_tokens.weight"], model().state_dict()["model.embed_tokens.weight"])


def test_records_at_interval_and_at_end(tmp_path, logs):
    history = train(build("orpo", tmp_path, max_steps=7, num_train_epochs=9), logs, every=3)
    records = list(history.records("completions"))
    assert [record["global_step"] for record in records] == [3, 6, 7]
    assert [sorted({row["step"] for row in record["rows"]}) for record in records] == [[1, 2, 3], [4, 5, 6], [7]]


def test_long_interval_samples_few_steps(tmp_path, logs):
    history = train(build("cpo", tmp_path, max_steps=12), logs, every=8, max_buffer=100)
    records = list(history.records("completions"))
    assert [record["global_step"] for record in records] == [8, 12]
    assert [sorted({row["step"] for row in record["rows"]}) for record in records] == [[1, 2, 4, 6, 8], [10, 12]]


def test_small_buffer_bounds_number_of_samples(tmp_path, logs):
    history = train(build("sft", tmp_path, per_device_train_batch_size=4, max_steps=8), logs, every=4, max_buffer=5)
    for record in history.records("completions"):
        assert len(record["rows"]) <= 5
        assert max(map(len, by_step(record["rows"]).values())) == 1
        assert "num_dropped" not in record


def test_accumulated_batches_add_up_within_a_step(tmp_path, logs):
    trainer = build("dpo", tmp_path, per_device_train_batch_size=1, gradient_accumulation_steps=3, max_steps=2)
    rows = by_step(train(trainer, logs, every=1, max_buffer=10).completions())
    assert [len(of_step) for of_step in rows.values()] == [2, 2]  # two of three fit into the buffer


def test_evaluation_is_not_sampled(tmp_path, logs):
    from transformers.trainer_utils import IntervalStrategy

    trainer = build("dpo", tmp_path, max_steps=2)
    trainer.eval_dataset, trainer.args.eval_steps = trainer.train_dataset, 1
    trainer.args.eval_strategy = IntervalStrategy.STEPS
    rows = by_step(train(trainer, logs, every=1).completions())
    assert [len(of_step) for of_step in rows.values()] == [2, 2]
    assert logged(trainer, "eval_loss").keys() == {1, 2}


@pytest.mark.parametrize("kind", ["dpo", "grpo"])
def test_callback_records_completions(kind, tmp_path, logs):
    from tachograph.integrations.transformers import TachographCallback

    trainer = build(kind, tmp_path, max_steps=5)
    callback = TachographCallback("run", log_dir=str(logs), completions_every=2, completions_buffer=20, **OPTIONS)
    trainer.add_callback(callback)
    trainer.train()
    callback.finish()
    records = list(tachograph.read(logs / "run").records("completions"))
    assert [record["global_step"] for record in records] == [2, 4, 5]
    assert all(record["columns"] == COLUMNS[kind] for record in records)


def test_callback_option_disables_completions(tmp_path, logs):
    from tachograph.integrations.transformers import TachographCallback

    trainer = build("dpo", tmp_path, max_steps=2)
    callback = TachographCallback("run", log_dir=str(logs), completions=False, **OPTIONS)
    trainer.add_callback(callback)
    trainer.train()
    callback.finish()
    assert tachograph.read(logs / "run").completions() == []
    assert "compute_loss" not in vars(trainer)


def test_report_to_follows_the_settings(tmp_path, logs, monkeypatch):
    from transformers.integrations import get_reporting_integration_callbacks

    import tachograph.integrations.transformers  # registers the name

    def train_reporting(name: str) -> list[dict[str, Any]]:
        trainer = build("dpo", tmp_path, max_steps=4)
        with tachograph.init(name, log_dir=str(logs), **OPTIONS):
            trainer.add_callback(get_reporting_integration_callbacks(["tachograph"])[0])
            trainer.train()
        return list(tachograph.read(logs / name).records("completions"))

    monkeypatch.setenv("TACHO_COMPLETIONS_EVERY", "2")
    assert [record["global_step"] for record in train_reporting("on")] == [2, 4]
    monkeypatch.setenv("TACHO_COMPLETIONS", "0")
    assert train_reporting("off") == []


@pytest.mark.parametrize(
    ("of_run", "of_callback", "num_records"), [(True, None, 2), (True, False, 0), (False, True, 0)]
)
def test_callback_option_applies_to_open_run(tmp_path, logs, of_run, of_callback, num_records):
    from tachograph.integrations.transformers import TachographCallback

    trainer = build("dpo", tmp_path, max_steps=2)
    with tachograph.init("run", log_dir=str(logs), completions=of_run, **OPTIONS) as run:
        trainer.add_callback(TachographCallback(run=run, completions=of_callback, completions_every=1))
        trainer.train()
    assert len(list(tachograph.read(logs / "run").records("completions"))) == num_records


def reasons(history: tachograph.RunHistory) -> list[tuple[str, str]]:
    events = [record for record in history.records("event") if record["name"] == "completions_unavailable"]
    return [(event["trainer"], event["reason"]) for event in events]


def test_unsupported_trainer_is_reported(tmp_path, logs):
    import trl
    from transformers import LlamaForSequenceClassification

    config = model().config
    config.num_labels = 1
    args = trl.RewardConfig(output_dir=str(tmp_path), max_steps=2, report_to="none", use_cpu=True, save_strategy="no")
    trainer = trl.RewardTrainer(
        LlamaForSequenceClassification(config),
        args=args,
        train_dataset=Dataset.from_list(PAIRS),
        processing_class=tokenizer(),
    )
    history = train(trainer, logs, every=1)
    assert reasons(history) == [("RewardTrainer", "capturing samples from RewardTrainer is not supported")]
    assert history.completions() == []


def test_incompatible_trainer_is_reported_once(tmp_path, logs):
    import trl

    class Other(trl.DPOTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(input_ids=inputs["input_ids"], labels=inputs["input_ids"]).loss

    trainer = build("dpo", tmp_path)
    trainer.__class__ = Other
    history = train(trainer, logs, every=1)
    assert [kind for kind, _ in reasons(history)] == ["Other"]
    assert history.completions() == []
    assert trainer.state.global_step == 6
    assert "compute_loss" not in vars(trainer)
    assert "gather" not in vars(trainer.accelerator)


def test_training_error_propagates_and_patches_are_undone(tmp_path, logs):
    trainer = build("dpo", tmp_path)
    trainer.accelerator.gather_for_metrics = None  # `compute_loss` calls it
    with pytest.raises(TypeError, match="not callable"):
        train(trainer, logs, every=1)
    assert "gather" not in vars(trainer.accelerator)


def test_other_trainers_are_not_captured(tmp_path, logs):
    from transformers import Trainer, TrainingArguments

    trainer = Trainer(model(), args=TrainingArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True))
    with tachograph.init("run", log_dir=str(logs), **OPTIONS) as run:
        assert capture_completions(trainer, run) is None
        with pytest.raises(ConfigError, match="every=0"):
            capture_completions(trainer, run, every=0)


def test_disabled_run_leaves_trainer_unpatched(tmp_path, logs):
    trainer = build("cpo", tmp_path)
    before = dict(vars(trainer))
    with tachograph.init("run", log_dir=str(logs), enabled=False, **OPTIONS) as run:
        assert capture_completions(trainer, run) is None
    assert vars(trainer) == before


class Spelling:
    """A tokenizer that decodes each token to its number."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return " ".join(map(str, tokens))


class Holder:
    processing_class = Spelling()


def sft_rows(batch: dict[str, Any], max_rows: int = 9) -> list[dict[str, Any]]:
    tensors = {name: torch.tensor(values) for name, values in batch.items()}
    return EXTRACTORS["SFTTrainer"].build_rows(Holder(), tensors, [], max_rows)


def test_packed_examples_are_split():
    batch = {
        "input_ids": [[1, 2, 3, 4, 5, 6]],
        "labels": [[-100, 2, 3, -100, -100, 6]],
        "position_ids": [[0, 1, 2, 0, 1, 2]],
    }
    assert sft_rows(batch) == [{"prompt": "1", "completion": "2 3"}, {"prompt": "4 5", "completion": "6"}]
    assert len(sft_rows(batch, max_rows=1)) == 1


def test_several_answers_are_joined_with_gaps():
    batch = {"input_ids": [[1, 2, 3, 4, 0]], "labels": [[-100, 2, -100, 4, -100]], "attention_mask": [[1, 1, 1, 1, 0]]}
    assert sft_rows(batch) == [{"prompt": "1", "completion": "2 […] 4"}]


def test_plain_text_has_no_prompt_and_long_text_is_cut():
    long = [list(range(9_000))]
    (row,) = sft_rows({"input_ids": long, "labels": long, "attention_mask": [[1] * 9_000]})
    assert row["prompt"] is None
    assert row["completion"].endswith(" 7998 7999… [cut, 9000 tokens]")


def test_supported_trainers_exist_in_trl():
    """Fails when TRL moves or renames one of them."""
    import trl
    from trl.experimental import cpo, orpo

    homes = {"ORPOTrainer": orpo, "CPOTrainer": cpo}
    for name, extractor in EXTRACTORS.items():
        assert callable(getattr(getattr(homes.get(name, trl), name), extractor.method))


# The callback of `tachograph.integrations.swanlab` -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dpo", "kto", "orpo", "cpo", "grpo"])
def test_swanlab_callback_fills_its_table(kind, tmp_path, logs):
    from tachograph.integrations.swanlab import SwanLabRLHFCompletionCallback

    trainer = build(kind, tmp_path)
    callback = SwanLabRLHFCompletionCallback(log_interval=2, max_completions=8)
    trainer.add_callback(callback)  # after the trainer has called `on_init_end`, as a plugin does
    with tachograph.init("run", log_dir=str(logs), **OPTIONS):
        trainer.train()
    assert callback.trainer_type == kind
    records = list(tachograph.read(logs / "run").records("completions"))
    assert [record["table"] for record in records] == ["rlhf_completions"] * 3
    rows = [row for record in records for row in record["rows"]]
    assert all(row["prompt"] and ("completion" in row or "chosen" in row) for row in rows)


def test_swanlab_callback_needs_no_run(tmp_path):
    from tachograph.integrations.swanlab import SwanLabRLHFCompletionCallback

    with pytest.raises(ConfigError, match="log_interval=0: expected an integer of at least 1"):
        SwanLabRLHFCompletionCallback(log_interval=0)
    trainer = build("sft", tmp_path, max_steps=1)
    callback = SwanLabRLHFCompletionCallback()
    trainer.add_callback(callback)
    trainer.train()
    assert callback.trainer_type == "unknown"
