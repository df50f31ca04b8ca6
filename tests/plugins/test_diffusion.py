"""Diffusion: masking, the loss against its formula, attention, the mask token, training, evaluation and sampling."""

from __future__ import annotations

import math

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import tachograph
from tachograph.exceptions import ConfigError, PluginError
from tachograph.plugins import PluginSession, apply
from tachograph.plugins.diffusion import (
    attention_mask_for,
    diffusion_loss,
    find_segments,
    forward_process,
    mask_probability,
    sample,
    shift_logits,
    unmask,
)
from tests.plugins.conftest import VOCABULARY, llama, logged, rows, weights

MASK = 63
SPECIAL = (0, 1, 2)


def make_tokenizer(num_words=VOCABULARY, **options):
    """Return a tokenizer whose token 7 is the word w7."""
    names = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{index}": index for index in range(3, num_words)}}
    backend = Tokenizer(models.WordLevel(names, unk_token="w3"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", **options
    )


def unlabelled(**options):
    return [{"input_ids": row["input_ids"], "attention_mask": row["attention_mask"]} for row in rows(**options)]


def diffusing(make_trainer, model=None, data=None, tokenizer=None, config=None, **arguments):
    """Return a trainer with the plugin, and the plugin."""
    trainer = make_trainer(model, data, **arguments)
    trainer.processing_class = tokenizer
    options = {"generate_samples": False, **({} if tokenizer else {"mask_token_id": MASK}), **(config or {})}
    applied = apply(trainer, ["diffusion"], {"diffusion": options})
    return trainer, applied.session.plugins[0]


# Masking -------------------------------------------------------------------------------------------------------------


def test_special_and_prompt_tokens_are_never_masked():
    ids = torch.randint(0, VOCABULARY, (64, 40))
    padding = torch.ones_like(ids)
    padding[:, 30:] = 0
    labels = ids.clone()
    labels[:, :10] = -100
    noisy = forward_process(ids, padding, labels, mask_token_id=MASK, special_ids=SPECIAL, t=torch.ones(64))
    assert noisy.mask.any()
    assert not noisy.mask[:, :10].any()
    assert not noisy.mask[:, 30:].any()
    assert not noisy.mask[torch.isin(ids, torch.tensor([*SPECIAL, MASK]))].any()
    eligible = ~torch.isin(ids, torch.tensor([*SPECIAL, MASK]))
    assert noisy.mask[:, 10:30].eq(eligible[:, 10:30]).all()  # at t = 1 everything else is
    assert torch.equal(noisy.input_ids, torch.where(noisy.mask, MASK, ids))
    assert (noisy.probability[:, 30:] == 0).all()


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_mask_rate_equals_mean_probability(schedule):
    ids = torch.full((4000, 16), 5)
    generator = torch.Generator().manual_seed(1)
    noisy = forward_process(ids, mask_token_id=MASK, schedule=schedule, generator=generator)
    mean = 0.5 if schedule == "linear" else 1 - 2 / math.pi
    assert float(noisy.mask.float().mean()) == pytest.approx(mean, abs=0.02)
    assert float(noisy.probability.mean()) == pytest.approx(mean, abs=0.02)
    assert (noisy.t == noisy.t[:, :1]).all()  # one time per sample
    low, high = noisy.t[:, 0] < 0.2, noisy.t[:, 0] > 0.8
    for chosen in (low, high):
        rate, expected = noisy.mask[chosen].float().mean(), noisy.probability[chosen].mean()
        assert float(rate) == pytest.approx(float(expected), abs=0.02)


def test_probability_follows_its_schedule():
    t = torch.tensor([0.0, 0.25, 1.0])
    torch.testing.assert_close(mask_probability(t, eps=0.1), torch.tensor([0.1, 0.325, 1.0]))
    cosine = 0.9 * (1 - math.cos(math.pi / 8)) + 0.1
    torch.testing.assert_close(mask_probability(t, eps=0.1, schedule="cosine"), torch.tensor([0.1, cosine, 1.0]))
    limited = mask_probability(t, eps=0.1, min_ratio=0.2, max_ratio=0.9)
    torch.testing.assert_close(limited, torch.tensor([0.2, 0.325, 0.9]))


def test_times_are_continuous_unless_steps_are_set():
    ids = torch.full((500, 4), 5)
    assert len(forward_process(ids, mask_token_id=MASK).t[:, 0].unique()) > 450
    found = forward_process(ids, mask_token_id=MASK, num_steps=4).t[:, 0].unique()
    assert found.tolist() == [0.25, 0.5, 0.75, 1.0]


def test_noise_does_not_depend_on_the_division_of_a_step():
    ids = torch.randint(3, 60, (4, 10))
    whole = forward_process(ids, mask_token_id=MASK, generator=torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    parts = [forward_process(row[None], mask_token_id=MASK, generator=generator) for row in ids]
    assert torch.equal(whole.mask, torch.cat([part.mask for part in parts]))
    assert torch.equal(whole.t, torch.cat([part.t for part in parts]))


def test_segments_of_packed_rows_are_found():
    ids = torch.zeros(3, 6, dtype=torch.long)
    numbered = torch.tensor([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    positions = torch.tensor([[0, 1, 0, 1, 2, 3], [0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 2, 3]])
    found = find_segments(ids, numbered, positions)
    assert found.first[0, :5].tolist() == [0, 0, 2, 2, 2]
    assert found.first[1].tolist() == [0, 0, 0, 3, 3, 3]
    assert found.first[2, 2:].tolist() == [2, 2, 2, 2]
    assert (found.ids == 0).tolist() == (numbered == 0).tolist()
    assert int(found.num_samples) == 5
    noisy = forward_process(ids + 5, numbered, mask_token_id=MASK, position_ids=positions)
    assert noisy.t[1, 0] == noisy.t[1, 2]
    assert noisy.t[1, 0] != noisy.t[1, 3]


# Loss ----------------------------------------------------------------------------------------------------------------


def reference_loss(logits, ids, mask, p, labels, weighting):
    """Return the loss with loops, in 64 bits."""
    logits = logits.double()
    per_row, num_masked = [], 0
    for row in range(len(ids)):
        total = 0.0
        for place in range(ids.shape[1]):
            if mask[row, place]:
                predicted = torch.log_softmax(logits[row, max(place - 1, 0)], dim=-1)[ids[row, place]]
                total += float(-predicted) / (float(p[row, place]) if weighting else 1.0)
                num_masked += 1
        per_row.append(total)
    if labels is not None:
        return sum(total / int((labels[row] != -100).sum()) for row, total in enumerate(per_row)) / len(ids)
    return sum(per_row) / (ids.numel() if weighting else num_masked)


@pytest.mark.parametrize(("labelled", "weighting"), [(False, True), (False, False), (True, True), (True, False)])
def test_loss_equals_its_formula(labelled, weighting):
    ids = torch.randint(3, 60, (3, 9))
    padding = torch.ones_like(ids)
    padding[2, 7:] = 0
    labels = ids.clone()
    labels[0, :4] = -100
    labels[1, :2] = -100
    labels[2, 7:] = -100
    given = labels if labelled else None
    t = torch.tensor([0.2, 0.5, 0.9])
    mask = torch.rand(3, 9) < 0.6
    noisy = forward_process(ids, padding, given, mask_token_id=MASK, special_ids=SPECIAL, t=t, mask=mask)
    logits = torch.randn(3, 9, VOCABULARY, requires_grad=True)
    segments = find_segments(ids, padding)
    loss = diffusion_loss(logits, ids, noisy.mask, noisy.probability, segments, given, importance_weighting=weighting)
    expected = reference_loss(
        logits.detach(), ids, noisy.mask, 0.999 * t[:, None].expand(3, 9) + 0.001, given, weighting
    )
    assert float(loss.total.detach() / loss.num_items) == pytest.approx(expected, rel=1e-6)
    predicted = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)  # from the position before
    torch.testing.assert_close(shift_logits(logits, segments)[:2], predicted[:2])
    hits = (predicted.argmax(dim=-1) == ids)[noisy.mask]
    assert (int(loss.num_correct), loss.num_masked) == (int(hits.sum()), int(noisy.mask.sum()))


def test_loss_without_masked_tokens_is_zero_with_gradient():
    ids = torch.full((2, 4), 5)
    logits = torch.randn(2, 4, VOCABULARY, requires_grad=True)
    nothing = torch.zeros_like(ids, dtype=torch.bool)
    for labels in (None, ids):
        loss = diffusion_loss(logits, ids, nothing, torch.ones(2, 4), find_segments(ids), labels)
        assert float(loss.total.detach()) == 0.0
        (gradient,) = torch.autograd.grad(loss.total, logits)
        assert (gradient == 0).all()


def test_packed_samples_have_the_loss_of_separate_ones():
    model = llama()
    separate = [torch.randint(3, 60, (1, size)) for size in (5, 7)]
    masks = [torch.rand(ids.shape) < 0.7 for ids in separate]
    totals = []
    for ids, mask in zip(separate, masks, strict=True):
        segments = find_segments(ids)
        attention = attention_mask_for(segments, "sdpa", torch.float32)
        logits = model(input_ids=torch.where(mask, MASK, ids), attention_mask=attention).logits
        totals.append(diffusion_loss(logits, ids, mask, torch.full(ids.shape, 0.5), segments, ids).total)
    ids, mask = torch.cat(separate, dim=1), torch.cat(masks, dim=1)
    positions = torch.tensor([[*range(5), *range(7)]])
    segments = find_segments(ids, None, positions)
    attention = attention_mask_for(segments, "sdpa", torch.float32)
    noisy = torch.where(mask, MASK, ids)
    logits = model(input_ids=noisy, attention_mask=attention, position_ids=positions).logits
    packed = diffusion_loss(logits, ids, mask, torch.full(ids.shape, 0.5), segments, ids)
    torch.testing.assert_close(packed.total, sum(totals))
    assert int(packed.num_items) == 2


# Attention -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_attention_sees_both_directions_but_no_padding(implementation, side):
    model = llama(attn_implementation=implementation).eval()
    ids = torch.randint(3, 60, (2, 8))
    padding = torch.ones_like(ids)
    pads = slice(6, 8) if side == "right" else slice(0, 2)
    padding[:, pads] = 0
    first, last = (0, 5) if side == "right" else (2, 7)
    attention = attention_mask_for(find_segments(ids, padding), implementation, torch.float32)

    def logits(changed):
        with torch.no_grad():
            return model(input_ids=changed, attention_mask=attention).logits[:, first]

    before = logits(ids)
    assert torch.isfinite(before).all()
    later = ids.clone()
    later[:, last] = 3 + (later[:, last] - 2) % 50
    assert not torch.allclose(logits(later), before, atol=1e-6)
    padded = ids.clone()
    padded[:, pads] = 3 + (padded[:, pads] - 2) % 50
    assert torch.equal(logits(padded), before)


def test_both_attention_implementations_train_the_same(make_trainer):
    losses = []
    for implementation in ("eager", "sdpa"):
        trainer, _ = diffusing(make_trainer, llama(attn_implementation=implementation))
        trainer.train()
        losses.append(logged(trainer, "loss"))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_flash_attention_is_rejected(make_trainer):
    model = llama()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(PluginError, match="'flash_attention_2' does not take a mask.*sdpa"):
        diffusing(make_trainer, model)


def test_model_that_ignores_its_mask_is_rejected(make_trainer):
    class Causal(transformers.LlamaForCausalLM):
        def forward(self, *arguments, attention_mask=None, **named):
            return super().forward(*arguments, **named)

    with pytest.raises(PluginError, match="Causal does not look at later tokens"):
        diffusing(make_trainer, Causal(llama().config))


# Training ------------------------------------------------------------------------------------------------------------


def packed(count=16):
    """Return rows of which every fourth one holds three samples, and the others one."""
    data = rows(count=count)
    for index, row in enumerate(data):
        row["position_ids"] = torch.arange(12) % 4 if index % 4 == 0 else torch.arange(12)
    return data


@pytest.mark.parametrize(
    "data", [rows(count=16), unlabelled(count=16), packed()], ids=["labels", "no labels", "packed"]
)
def test_accumulated_batches_train_like_one_batch(make_trainer, data):
    found = []
    for size, accumulation in ((4, 1), (1, 4)):
        trainer, plugin = diffusing(
            make_trainer,
            data=data,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulation,
            max_grad_norm=0,
        )
        results = []
        plugin.compute_loss = lambda *given, own=plugin.compute_loss, kept=results: kept.append(own(*given)) or kept[-1]
        trainer.train()
        steps = [results[start : start + accumulation] for start in range(0, len(results), accumulation)]
        means = [
            sum(float(result.total.detach()) for result in step) / sum(int(result.num_items) for result in step)
            for step in steps
        ]
        assert logged(trainer, "loss") == pytest.approx(means, rel=1e-4)
        found.append((means, weights(trainer.model)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    for name, value in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], value, rtol=1e-3, atol=1e-5)


def test_padding_of_packed_rows_changes_nothing(make_trainer):
    """Packed rows have no attention mask, so their padding looks like one more sample, but has no labels."""
    whole = [{key: value for key, value in row.items() if key != "attention_mask"} for row in packed()[::4]]
    filling = {"input_ids": torch.zeros(6).long(), "labels": torch.full((6,), -100), "position_ids": torch.arange(6)}
    padded = [{key: torch.cat([value, filling[key]]) for key, value in row.items()} for row in whole]
    found = []
    for data in (whole, padded):
        trainer, _ = diffusing(make_trainer, data=data, per_device_train_batch_size=1)
        trainer.train()
        metrics = [logged(trainer, key) for key in ("loss", "plugin/diffusion/mask_ratio")]
        found.append((metrics, weights(trainer.model)))
    assert found[1][0] == [pytest.approx(values, rel=1e-5) for values in found[0][0]]
    for name, value in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], value, rtol=1e-3, atol=1e-5)


def test_step_without_labels_has_no_loss(make_trainer):
    data = [{**row, "labels": torch.full_like(row["labels"], -100)} for row in rows()]
    trainer, _ = diffusing(make_trainer, data=data, tokenizer=make_tokenizer(), config={"generate_samples": True})
    before = weights(trainer.model)
    trainer.train()
    assert logged(trainer, "loss") == [0.0] * 4
    assert all(torch.equal(before[name], value) for name, value in weights(trainer.model).items())


def test_unweighted_loss_is_divided_by_accumulated_batches(make_trainer):
    means = []
    for accumulation in (1, 4):
        config = {"importance_weighting": False}
        trainer, _ = diffusing(
            make_trainer, data=unlabelled(), config=config, gradient_accumulation_steps=accumulation, learning_rate=0.0
        )
        trainer.train()
        means.append(sum(logged(trainer, "loss")) / 4)
    assert means[1] == pytest.approx(means[0], rel=0.15)  # four times as large if it were not


def test_resumed_training_draws_the_same_noise(make_trainer, tmp_path):
    whole, _ = diffusing(make_trainer, max_steps=6, output_dir=str(tmp_path / "whole"))
    whole.train()
    parts = str(tmp_path / "parts")
    first, _ = diffusing(make_trainer, max_steps=6, save_strategy="steps", save_steps=3, output_dir=parts)
    first.train()
    second, _ = diffusing(make_trainer, max_steps=6, output_dir=parts)
    second.train(resume_from_checkpoint=f"{parts}/checkpoint-3")
    for name, value in weights(whole.model).items():
        torch.testing.assert_close(weights(second.model)[name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_overfits_eight_sequences(make_trainer):
    data = rows(masked=0)
    trainer, plugin = diffusing(
        make_trainer,
        llama(hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=4),
        data * 8,  # each sequence with eight masks per step
        per_device_train_batch_size=64,
        max_steps=120,
        logging_steps=40,
        warmup_steps=10,
    )
    trainer.train()
    accuracy = logged(trainer, "plugin/diffusion/accuracy")
    assert accuracy == sorted(accuracy)
    ids = torch.stack([row["input_ids"] for row in data])
    mask = torch.rand(ids.shape, generator=torch.Generator().manual_seed(2)) < 0.4
    found = unmask(trainer.model, ids, mask, mask_token_id=plugin.mask_token_id)
    assert torch.equal(found[~mask], ids[~mask])
    assert float((found == ids)[mask].float().mean()) > 0.9


def test_metrics_describe_the_masking(make_trainer):
    trainer, _ = diffusing(make_trainer, per_device_train_batch_size=8, max_steps=3)
    trainer.train()
    metric = {name: logged(trainer, f"plugin/diffusion/{name}") for name in (
        "active", "accuracy", "mask_ratio", "num_masked_tokens", "avg_p_mask", "ce_loss", "importance_weight_avg",
        "answer_ratio", "avg_answer_length",
    )}  # fmt: skip
    assert metric["active"] == [1.0] * 3
    assert metric["answer_ratio"] == pytest.approx([8 / 12] * 3)
    assert metric["avg_answer_length"] == pytest.approx([8.0] * 3)
    assert metric["num_masked_tokens"] == pytest.approx([ratio * 96 for ratio in metric["mask_ratio"]])
    assert all(0 < ratio <= 8 / 12 for ratio in metric["mask_ratio"])
    assert all(0 < p < 1 for p in metric["avg_p_mask"])
    assert all(weight >= 1 for weight in metric["importance_weight_avg"])
    assert metric["ce_loss"][0] == pytest.approx(math.log(VOCABULARY), rel=0.1)


@pytest.mark.parametrize("data", [rows(), unlabelled()], ids=["labels", "no labels"])
def test_evaluations_are_comparable(make_trainer, data):
    trainer, _ = diffusing(make_trainer, data=data, learning_rate=0.0, per_device_eval_batch_size=4)
    trainer.eval_dataset = data
    before = trainer.evaluate()["eval_loss"]
    assert trainer.evaluate()["eval_loss"] == before
    trainer.train()
    assert trainer.evaluate()["eval_loss"] == before
    assert before == pytest.approx(math.log(VOCABULARY), rel=0.8)


def test_evaluation_returns_masked_tokens_as_labels(make_trainer):
    trainer, _ = diffusing(make_trainer)
    seen = []

    def compute_metrics(predictions):
        seen.append(predictions)
        return {}

    trainer.compute_metrics = compute_metrics
    trainer.evaluate(rows())
    (found,) = seen
    assert found.predictions.shape == (8, 12, VOCABULARY)
    ids = torch.stack([row["input_ids"] for row in rows()]).numpy()
    is_masked = found.label_ids != -100
    assert is_masked.any()
    assert not is_masked.all()
    assert (found.label_ids[is_masked] == ids[is_masked]).all()


# Mask token ----------------------------------------------------------------------------------------------------------


def test_mask_token_is_added_with_a_trained_row(make_trainer):
    tokenizer = make_tokenizer()
    trainer, plugin = diffusing(make_trainer, tokenizer=tokenizer, learning_rate=1e-2)
    assert plugin.mask_token_id == VOCABULARY
    assert tokenizer.mask_token == "<|diffusion_mask|>"
    assert len(tokenizer) == VOCABULARY + 1
    assert trainer.model.get_input_embeddings().weight.shape[0] == VOCABULARY + 1
    assert plugin.report.changes["embeddings resized"]["names"] == ["64 → 65 tokens"]
    before = trainer.model.get_input_embeddings().weight[VOCABULARY].clone()
    trainer.train()
    assert not torch.equal(trainer.model.get_input_embeddings().weight[VOCABULARY], before)


def test_unused_embedding_rows_are_used_first(make_trainer):
    tokenizer = make_tokenizer(num_words=50)
    trainer, plugin = diffusing(make_trainer, tokenizer=tokenizer)
    assert plugin.mask_token_id == 50
    assert trainer.model.get_input_embeddings().weight.shape[0] == VOCABULARY


def test_existing_tokens_serve_as_mask_token(make_trainer):
    for config in ({"mask_token_id": 40}, {"mask_token_str": "w40"}):
        tokenizer = make_tokenizer()
        trainer, plugin = diffusing(make_trainer, tokenizer=tokenizer, config=config)
        assert (plugin.mask_token_id, tokenizer.mask_token) == (40, "w40")
        assert len(tokenizer) == trainer.model.get_input_embeddings().weight.shape[0] == VOCABULARY
    _, plugin = diffusing(make_trainer, tokenizer=make_tokenizer(mask_token="w41"), config={"mask_token_str": ""})
    assert plugin.mask_token_id == 41


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"mask_token_id": 2}, "the mask token '</s>' also begins, ends or pads texts"),
        ({"mask_token_str": "<pad>"}, "the mask token '<pad>' also"),
        ({"mask_token_id": 64}, "mask_token_id=64 is not a token: the tokenizer has 64 tokens"),
    ],
)
def test_wrong_mask_token_is_explained(make_trainer, config, problem):
    with pytest.raises(PluginError, match=problem):
        diffusing(make_trainer, tokenizer=make_tokenizer(), config=config)


def test_mask_token_id_may_be_an_added_token(make_trainer):
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["extra"])
    assert tokenizer.vocab_size == VOCABULARY  # does not count it
    _, plugin = diffusing(
        make_trainer, llama(vocab_size=VOCABULARY + 1), tokenizer=tokenizer, config={"mask_token_id": VOCABULARY}
    )
    assert plugin.mask_token_id == VOCABULARY


def test_new_mask_token_needs_a_tokenizer_and_no_optimizer(make_trainer):
    with pytest.raises(PluginError, match="no tokenizer.*processing_class"):
        apply(make_trainer(), ["diffusion"], {"diffusion": {"generate_samples": False}})
    trainer = make_trainer()
    trainer.processing_class = make_tokenizer()
    trainer.create_optimizer()
    with pytest.raises(PluginError, match="the optimizer exists already"):
        apply(trainer, ["diffusion"])


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"noise_schedule": "square"}, "diffusion.noise_schedule='square'"),
        ({"min_mask_ratio": 0.8, "max_mask_ratio": 0.2}, "min_mask_ratio=0.8 and max_mask_ratio=0.2"),
        ({"eps": 0}, "diffusion.eps=0"),
        ({"mask_token_id": 5, "mask_token_str": "x"}, "both name the mask token"),
        ({"generate_sample": True}, "diffusion.generate_sample"),
    ],
)
def test_wrong_options_are_explained(config, problem):
    with pytest.raises(ConfigError, match=problem):
        PluginSession.open(["diffusion"], {"diffusion": config})


def test_plan_says_which_formula_is_used():
    session = PluginSession.open(["diffusion"], {})
    with torch.device("meta"):
        lines = session.plugins[0].plan(session.cfg, llama())
    assert lines[0] == "masks tokens with p = (1 - 0.001) * t + 0.001"
    page = {"noise_schedule": "cosine", "min_mask_ratio": 0.1, "max_mask_ratio": 0.9, "num_diffusion_steps": 128}
    session = PluginSession.open(["diffusion"], {"diffusion": page})
    assert session.plugins[0].plan(session.cfg, None)[:3] == [
        "masks tokens with p = (1 - 0.001) * (1 - cos(t * pi / 2)) + 0.001",
        "limits p to 0.1 … 0.9",
        "draws t from 128 values",
    ]


# Sampling ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("steps", [1, 3, 64])
def test_unmasking_replaces_masked_tokens_only(temperature, steps):
    ids = torch.randint(3, 60, (3, 20))
    mask = torch.rand(3, 20) < torch.tensor([[0.0], [0.4], [1.0]])
    model = llama()
    with torch.no_grad():  # the most likely token of the model is the mask token, which must not be generated
        model.lm_head.weight[MASK] = 10 * model.lm_head.weight.abs().sum(dim=0)
    found = unmask(model, ids, mask, mask_token_id=MASK, steps=steps, temperature=temperature)
    assert torch.equal(found[~mask], ids[~mask])
    assert not (found == MASK).any()
    assert model.training


def test_each_step_unmasks_the_most_confident_tokens():
    model = llama()
    ids = torch.randint(3, 60, (1, 10))
    mask = torch.ones_like(ids, dtype=torch.bool)
    seen = []
    model.register_forward_pre_hook(
        lambda module, arguments, named: seen.append(int((named["input_ids"] == MASK).sum())), with_kwargs=True
    )
    unmask(model, ids, mask, mask_token_id=MASK, steps=4)
    assert seen == [10, 8, 6, 3]  # int(10 / 4), int(8 / 3), int(6 / 2), and the rest
    seen.clear()
    unmask(model, ids, mask, mask_token_id=MASK, steps=100)
    assert seen == list(range(10, 0, -1))


def test_sample_modes():
    tokenizer = make_tokenizer(num_words=50, mask_token="w49")
    model = llama()
    text = " ".join(f"w{index}" for index in range(10, 30))
    completed = sample(model, tokenizer, text, num_tokens=5)
    assert completed.masked == text + " w49" * 5
    assert completed.generated.startswith(text)
    assert (completed.num_masked, len(completed.ids), completed.accuracy) == (5, 25, None)
    assert "w49" not in completed.generated
    assert max(completed.ids) < 50  # rows of the model that are no tokens are not generated
    masked = sample(model, tokenizer, text, mode="random", mask_ratio=0.4)
    assert (masked.num_masked, masked.mask_ratio, masked.original) == (8, 0.4, text)
    assert masked.masked.split().count("w49") == 8
    assert masked == sample(model, tokenizer, text, mode="random", mask_ratio=0.4)
    assert 2 <= sample(model, tokenizer, text, mode="random", seed=3).num_masked <= 14
    labels = [-100] * 15 + list(range(25, 30))
    answer = sample(model, tokenizer, list(range(10, 30)), mode="sft", labels=labels)
    assert answer.masked.split()[:15] == text.split()[:15]
    assert answer.masked.split()[15:] == ["w49"] * 5
    with pytest.raises(ConfigError, match="mask_ratio=40"):
        sample(model, tokenizer, text, mode="random", mask_ratio=40)
    with pytest.raises(PluginError, match="no mask token"):
        sample(model, make_tokenizer(), text)


@pytest.mark.parametrize(("data", "mode"), [(rows(), "sft"), (unlabelled(), "random")])
def test_samples_are_recorded_as_a_table(make_trainer, tmp_path, data, mode):
    config = {"generate_samples": True, "generation_interval": 2, "num_generation_samples": 2, "generation_steps": 3}
    with tachograph.init("diffusion", log_dir=str(tmp_path), console=False) as run:
        trainer, _ = diffusing(
            make_trainer, data=data, tokenizer=make_tokenizer(), config={**config, "generation_max_length": 10}
        )
        trainer.train()
    found = tachograph.read(run).completions()
    assert [row["step"] for row in found] == [2, 2, 4, 4]
    for row in found:
        assert row["mode"] == mode
        assert len(row["original"].split()) == 10
        assert row["masked"].split().count("<|diffusion_mask|>") == row["num_masked"] > 0
        assert "<|diffusion_mask|>" not in row["generated"]
        assert 0 <= row["accuracy"] <= 1
    assert found[0]["masked"] == found[2]["masked"]  # comparable over time
    assert len(logged(trainer, "plugin/diffusion/sample_accuracy")) == 2


def test_samples_start_from_evaluation_data(make_trainer):
    config = {"generate_samples": True, "num_generation_samples": 3, "generation_steps": 2}
    one = list(range(3, 9))
    two = [9, 10, 11]
    packed_rows = [
        {"input_ids": one + two, "labels": one + two, "position_ids": [*range(6), *range(3)]},
        {"input_ids": one + two, "labels": [-100, *one[1:], -100, *two[1:]], "seq_lengths": [6, 3]},
        {"input_ids": one + two, "labels": [-100] * 6 + two},
    ]
    trainer = make_trainer()
    trainer.eval_dataset = packed_rows
    trainer.processing_class = make_tokenizer(num_words=50)
    plugin = apply(trainer, ["diffusion"], {"diffusion": config}).session.plugins[0]
    found = list(plugin.samples(trainer.model))
    assert [(entry.mode, len(entry.ids)) for entry in found] == [("random", 6), ("random", 6), ("sft", 9)]
    assert found[2].masked.split()[:6] == [f"w{index}" for index in one]


def test_samples_do_not_change_the_training(make_trainer):
    found = []
    for generates in (False, True):
        config = {"generate_samples": generates, "generation_interval": 1, "generation_temperature": 1.0}
        trainer, _ = diffusing(make_trainer, tokenizer=make_tokenizer(num_words=50), config=config)
        trainer.train()
        found.append(logged(trainer, "loss"))
    assert found[0] == found[1]


def test_preference_data_is_rejected(make_trainer):
    _, plugin = diffusing(make_trainer)
    with pytest.raises(PluginError, match="a batch has no input_ids, but chosen_ids"):
        plugin.compute_loss(None, None, {"chosen_ids": 1})
