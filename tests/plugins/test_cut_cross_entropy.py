"""Cut Cross Entropy: the chunked loss against PyTorch's, in trainers, and with models that change their logits."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from tachograph.exceptions import ConfigError, PluginError
from tachograph.plugins import BasePlugin, LossResult, PluginSession, apply
from tachograph.plugins.cut_cross_entropy import linear_cross_entropy
from tachograph.plugins.cut_cross_entropy._chunked import plan_chunks
from tests.plugins.conftest import (
    VOCABULARY,
    assert_gradients_match_differences,
    llama,
    logged,
    rows,
    weights,
)

CHUNKED = {"cut_cross_entropy_impl": "chunked", "cut_cross_entropy_chunk_size": 5}
TOLERANCE = {"rtol": 1e-4, "atol": 1e-6}


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest new tensor that an operation returned."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, kinds, arguments=(), named=None):
        result = function(*arguments, **(named or {}))
        known = {entry.untyped_storage().data_ptr() for entry in arguments if isinstance(entry, torch.Tensor)}
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in known:
            self.numel = max(self.numel, result.numel())
        return result


def problem(dtype, *, bias=False, tokens=37, vocabulary=50, size=16):
    torch.manual_seed(0)
    hidden = torch.randn(tokens, size).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, size).to(dtype).requires_grad_()
    offsets = torch.randn(vocabulary).to(dtype).requires_grad_() if bias else None
    labels = torch.randint(0, vocabulary, (tokens,))
    labels[::3] = -100
    return hidden, weight, offsets, labels


def reference(hidden, weight, bias, labels, scale, softcap):
    """Return the loss and the gradients that PyTorch computes, in 64 bits."""
    leaves = [
        entry.detach().double().requires_grad_() if entry is not None else None for entry in (hidden, weight, bias)
    ]
    logits = F.linear(*leaves) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    loss = F.cross_entropy(logits, labels, reduction="sum")
    (0.3 * loss).backward()
    return loss.detach(), [leaf.grad for leaf in leaves if leaf is not None]


@pytest.mark.parametrize(("scale", "softcap", "bias"), list(itertools.product((1.0, 0.5), (None, 3.0), (False, True))))
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)], ids=str
)
def test_loss_and_gradients_equal_cross_entropy(dtype, tolerance, scale, softcap, bias):
    hidden, weight, offsets, labels = problem(dtype, bias=bias)
    loss, gradients = reference(hidden, weight, offsets, labels, scale, softcap)
    for chunk_size in (1, 7, 100, None):
        for leaf in (hidden, weight, offsets):
            if leaf is not None:
                leaf.grad = None
        total, count = linear_cross_entropy(
            hidden, weight, labels, bias=offsets, scale=scale, softcap=softcap, chunk_size=chunk_size
        )
        (0.3 * total).backward()
        assert count == int((labels != -100).sum())
        assert total.detach().double() == pytest.approx(float(loss), rel=tolerance)
        for leaf, expected in zip([hidden, weight, offsets], gradients, strict=False):
            error = (leaf.grad.double() - expected).abs().max() / expected.abs().max()
            assert error < tolerance


def test_gradients_agree_with_finite_differences():
    hidden, weight, bias, labels = problem(torch.float64, bias=True, tokens=7, vocabulary=9, size=4)

    def loss():
        return linear_cross_entropy(hidden, weight, labels, bias=bias, softcap=2.0, scale=0.7, chunk_size=3)[0]

    assert_gradients_match_differences(loss, (hidden, weight, bias))


def test_logits_of_all_tokens_are_never_created():
    hidden, weight, _, labels = problem(torch.float32, tokens=256, vocabulary=400, size=8)
    with LargestTensor() as largest:
        linear_cross_entropy(hidden, weight, labels, chunk_size=16)[0].backward()
    assert largest.numel == 16 * 400
    with LargestTensor() as largest:
        F.cross_entropy(hidden @ weight.t(), labels).backward()
    assert largest.numel == 256 * 400


def test_frozen_weight_gets_no_gradient():
    hidden, weight, _, labels = problem(torch.float32, tokens=64, vocabulary=200, size=64)
    weight.requires_grad_(False)
    with LargestTensor() as largest:
        linear_cross_entropy(hidden, weight, labels, chunk_size=4)[0].backward()
    assert largest.numel < weight.numel()
    assert hidden.grad is not None


def test_second_backward_pass_is_an_error():
    hidden, weight, _, labels = problem(torch.float32)
    total, _ = linear_cross_entropy(hidden, weight, labels)
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward"):
        total.backward()


def test_only_ignored_labels_give_zero():
    hidden, weight, bias, labels = problem(torch.float32, bias=True)
    total, count = linear_cross_entropy(hidden, weight, torch.full_like(labels, -100), bias=bias)
    total.backward()
    assert (float(total.detach()), count) == (0.0, 0)
    for leaf in (hidden, weight, bias):
        assert not leaf.grad.any()


def test_plan_keeps_gradients_and_chunk_below_a_tenth():
    tokens, vocabulary = 8192, 128256
    usual = 12 * tokens * vocabulary
    for size in (1024, 2048, 4096):
        plan = plan_chunks(tokens, vocabulary, size, torch.bfloat16)
        kept = (vocabulary + tokens) * size * 2 + plan.rows * vocabulary * 2 + plan.block * vocabulary * 4
        assert kept <= usual / 10
        assert plan.rows >= 256
    assert not plan_chunks(tokens, vocabulary, 4096, torch.bfloat16).accumulate_fp32
    assert plan_chunks(8 * tokens, vocabulary, 4096, torch.bfloat16).accumulate_fp32
    assert plan_chunks(tokens, vocabulary, 4096, torch.float16).accumulate_fp32


# In trainers ----------------------------------------------------------------------------------------------------------


def train(make_trainer, options=CHUNKED, **arguments):
    trainer = make_trainer(**arguments)
    if options is not None:
        apply(trainer, ["cut_cross_entropy"], options)
    trainer.train()
    return trainer


def assert_same_training(plain, cut, **tolerance):
    assert logged(cut, "loss") == pytest.approx(logged(plain, "loss"), rel=1e-4)
    for (name, expected), value in zip(weights(plain.model).items(), weights(cut.model).values(), strict=True):
        torch.testing.assert_close(value, expected, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_training_equals_the_usual_one(make_trainer, accumulation):
    options = {"gradient_accumulation_steps": accumulation, "optim": "sgd", "learning_rate": 0.5}
    plain = train(make_trainer, None, **options)
    cut = train(make_trainer, **options)
    assert_same_training(plain, cut, **TOLERANCE)
    assert logged(cut, "plugin/cut_cross_entropy/active") == [1.0] * 4
    assert logged(cut, "plugin/cut_cross_entropy/kernel") == [0.0] * 4
    assert logged(cut, "plugin/cut_cross_entropy/tokens") == [2 * 8] * 4
    assert logged(cut, "plugin/cut_cross_entropy/logit_bytes_avoided") == [2 * 12 * VOCABULARY * 4] * 4
    assert all(value > 0 for value in logged(cut, "plugin/cut_cross_entropy/ms"))


def test_accumulated_batches_equal_one_batch(make_trainer):
    data = rows(count=4)
    data[0]["labels"][:8] = -100  # batches with different numbers of labels
    options = {"data": data, "optim": "sgd", "max_steps": 2, "learning_rate": 0.5}
    whole = train(make_trainer, per_device_train_batch_size=4, **options)
    parts = train(make_trainer, per_device_train_batch_size=1, gradient_accumulation_steps=4, **options)
    assert_same_training(whole, parts, **TOLERANCE)


def test_mixed_precision_is_close_to_the_usual_one(make_trainer):
    plain = train(make_trainer, None, bf16=True, optim="sgd")
    cut = train(make_trainer, bf16=True, optim="sgd")
    assert logged(cut, "loss") == pytest.approx(logged(plain, "loss"), rel=2e-3)
    assert logged(cut, "grad_norm") == pytest.approx(logged(plain, "grad_norm"), rel=2e-2)


SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


def gemma2():
    return transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**SMALL, head_dim=16, final_logit_softcapping=0.5, attn_implementation="eager")
    )


def granite():
    return transformers.GraniteForCausalLM(transformers.GraniteConfig(**SMALL, logits_scaling=4.0))


def phi():
    return transformers.PhiForCausalLM(transformers.PhiConfig(**SMALL, resid_pdrop=0.0, embd_pdrop=0.0))


def mixtral():
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SMALL, num_local_experts=4, output_router_logits=True, router_aux_loss_coef=0.3)
    )


def tied_llama():
    return llama(tie_word_embeddings=True)


@pytest.mark.parametrize("model", [tied_llama, gemma2, granite, phi, mixtral], ids=lambda make: make.__name__)
def test_models_that_change_their_logits_train_equally(make_trainer, model):
    trained = []
    for options in (None, CHUNKED):
        torch.manual_seed(7)
        trained.append(train(make_trainer, options, model=model(), optim="sgd", max_steps=2, learning_rate=0.5))
    assert_same_training(*trained, **TOLERANCE)


def lora(model, **options):
    peft = pytest.importorskip("peft")
    torch.manual_seed(9)
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], **options))


@pytest.mark.parametrize("options", [{}, {"modules_to_save": ["lm_head"]}], ids=["lora", "saved-head"])
def test_adapters_train_equally(make_trainer, options):
    plain = train(make_trainer, None, model=lora(llama(), **options), label_names=["labels"])
    cut = train(make_trainer, model=lora(llama(), **options), label_names=["labels"])
    assert_same_training(plain, cut, rtol=1e-3, atol=1e-5)


def test_adapter_on_the_head_is_an_error(make_trainer):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(llama(), peft.LoraConfig(r=2, target_modules=["lm_head"]))
    with pytest.raises(PluginError, match="output head has an adapter.*modules_to_save"):
        apply(make_trainer(model=model, label_names=["labels"]), ["cut_cross_entropy"])


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{index}": index for index in range(3, VOCABULARY)}}
    raw = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


@pytest.mark.parametrize("with_adapter", [False, True], ids=["full", "lora"])
def test_sft_trainer_trains_equally(tmp_path, with_adapter):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    texts = [
        {"prompt": f"w{3 + index} w{9 + index}", "completion": " ".join(f"w{(index * k) % 50 + 3}" for k in range(9))}
        for index in range(8)
    ]
    trained = []
    for options in (None, CHUNKED):
        arguments = trl.SFTConfig(
            output_dir=str(tmp_path), per_device_train_batch_size=2, max_steps=3, logging_steps=1, report_to="none",
            use_cpu=True, save_strategy="no", disable_tqdm=True, bf16=False, gradient_accumulation_steps=2,
            gradient_checkpointing=False, optim="sgd", learning_rate=0.5,
        )  # fmt: skip
        model = lora(llama()) if with_adapter else llama()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = trl.SFTTrainer(
                model, arguments, train_dataset=datasets.Dataset.from_list(texts), processing_class=tokenizer()
            )
            if options is not None:
                apply(trainer, ["cut_cross_entropy"], options)
            trainer.train()
        trained.append(trainer)
    assert_same_training(*trained, rtol=1e-3, atol=1e-5)
    assert logged(trained[1], "plugin/cut_cross_entropy/active") == [1.0] * 3


# Evaluation -----------------------------------------------------------------------------------------------------------


def test_evaluation_gets_logits_when_it_asks_for_them(make_trainer):
    shapes = []

    def metrics(predictions):
        shapes.append(predictions.predictions.shape)
        return {}

    for compute_metrics in (metrics, None):
        trainer = make_trainer(max_steps=1)
        trainer.compute_metrics = compute_metrics
        usual = trainer.evaluate(rows(count=4))["eval_loss"]
        apply(trainer, ["cut_cross_entropy"], CHUNKED)
        with LargestTensor() as largest:
            assert trainer.evaluate(rows(count=4))["eval_loss"] == pytest.approx(usual, rel=1e-5)
        assert (largest.numel >= 4 * 12 * VOCABULARY) == (compute_metrics is not None)
    assert shapes == [(4, 12, VOCABULARY)] * 2


def test_batches_without_labels_are_predicted_but_not_trained(make_trainer):
    data = [{key: row[key] for key in ("input_ids", "attention_mask")} for row in rows(count=2)]
    trainer = make_trainer(data=data)
    apply(trainer, ["cut_cross_entropy"])
    assert trainer.predict(data).predictions.shape == (2, 12, VOCABULARY)
    with pytest.raises(PluginError, match="batch has no labels, only attention_mask, input_ids: use a data collator"):
        trainer.train()


def test_undo_restores_the_model(make_trainer):
    trainer = make_trainer()
    before = trainer.model.lm_head.forward
    applied = apply(trainer, ["cut_cross_entropy"])
    change = applied.session.plugins[0].report.changes["modules patched"]
    assert change["names"] == ["lm_head", "loss_function"]
    assert trainer.model.generate(torch.tensor([[3, 4]]), max_new_tokens=2, do_sample=False).shape == (1, 4)
    applied.undo()
    assert trainer.model.lm_head.forward == before
    assert "_loss_function" not in vars(trainer.model)
    assert "prediction_step" not in vars(trainer)


# Errors ---------------------------------------------------------------------------------------------------------------


class OtherLoss(BasePlugin):
    """Another plugin that computes the loss."""

    def compute_loss(self, trainer, model, inputs):
        return LossResult(model(**inputs).loss)


class SlicingModel(transformers.LlamaForCausalLM):
    """A model that needs its logits."""

    def forward(self, input_ids=None, labels=None, **named):
        logits = self.lm_head(self.model(input_ids).last_hidden_state)
        return {"loss": self.loss_function(logits[:, :4], labels[:, :4], self.config.vocab_size)}


class SilentModel(transformers.LlamaForCausalLM):
    """A model that computes its loss elsewhere."""

    def forward(self, input_ids=None, labels=None, **named):
        return {"loss": self.model(input_ids).last_hidden_state.mean()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunked_cross_entropy": True}, "also replaces the loss"),
        ({"cut_cross_entropy_impl": "triton"}, "cut_cross_entropy_impl='triton'"),
        ({"cut_cross_entropy_chunk_size": 0}, "cut_cross_entropy_chunk_size=0"),
        ({"cut_cross_entropy_impl": "cce", "cut_cross_entropy_chunk_size": 8}, "has no effect"),
        ({"cut_cross_entropy_impl": "cce"}, "pip install cut-cross-entropy|needs a CUDA GPU"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_invalid_options_are_rejected(make_trainer, options, message):
    with pytest.raises(ConfigError, match=message):
        apply(make_trainer(use_cpu=True), ["cut_cross_entropy"], options)


def test_other_losses_are_rejected(make_trainer):
    with pytest.raises(PluginError, match="cut_cross_entropy and other_loss cannot be combined: both replace the loss"):
        apply(make_trainer(), ["cut_cross_entropy", OtherLoss])
    with pytest.raises(PluginError, match="label_smoothing_factor needs logits"):
        apply(make_trainer(label_smoothing_factor=0.1), ["cut_cross_entropy"])
    trainer = make_trainer()
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch=None: outputs.loss
    with pytest.raises(PluginError, match="remove compute_loss_func"):
        apply(trainer, ["cut_cross_entropy"])
    trainer = make_trainer()
    trainer.model.loss_function = F.cross_entropy
    with pytest.raises(PluginError, match="loss function of LlamaForCausalLM was replaced already"):
        apply(trainer, ["cut_cross_entropy"])


@pytest.mark.parametrize(
    ("kind", "message"),
    [(SlicingModel, "the model slices its logits"), (SilentModel, "did not pass its logits to `loss_function`")],
)
def test_models_that_need_logits_are_an_error(make_trainer, kind, message):
    trainer = make_trainer(model=kind(llama().config))
    apply(trainer, ["cut_cross_entropy"])
    with pytest.raises(PluginError, match=message):
        trainer.train()


def test_plan_names_the_memory():
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(llama(vocab_size=32768).config)
    session = PluginSession.open(["cut_cross_entropy"], {})
    (line,) = session.plugins[0].plan(session.cfg, model)
    assert "32768 logits per token (auto)" in line
    assert "logits of 512 MiB are not kept" in line
    session = PluginSession.open(["cut_cross_entropy"], {"cut_cross_entropy_impl": "torch_compile"})
    with pytest.raises(PluginError, match="pip install cut-cross-entropy"):
        session.plugins[0].plan(session.cfg, model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # raised by the compiler itself
def test_compiled_model_trains_equally(make_trainer):
    small = {"optim": "sgd", "max_steps": 1, "data": rows(count=2)}
    plain = train(make_trainer, None, model=llama(num_hidden_layers=1), **small)
    compiled = {"torch_compile": True, "torch_compile_backend": "eager"}
    cut = train(make_trainer, model=llama(num_hidden_layers=1), **small, **compiled)
    assert_same_training(plain, cut, **TOLERANCE)


def test_model_without_head_is_an_error(make_trainer):
    model = transformers.LlamaForSequenceClassification(llama().config)
    with pytest.raises(PluginError, match="LlamaForSequenceClassification has no output head"):
        apply(make_trainer(model=model), ["cut_cross_entropy"])


PACKAGE = """
import torch
import torch.nn.functional as F

def linear_cross_entropy(e, c, targets, ignore_index=-100, softcap=None, reduction="mean", shift=False,
                         filter_eps="high", impl="cce"):
    assert impl == "torch_compile" and not shift
    logits = e @ c.T
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return F.cross_entropy(logits, targets, ignore_index=ignore_index, reduction=reduction)
"""


def test_package_is_called_with_its_arguments(make_trainer, tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "cut_cross_entropy.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path / "package")
    torch.manual_seed(7)
    plain = train(make_trainer, None, model=gemma2(), optim="sgd")
    torch.manual_seed(7)
    cut = train(make_trainer, {"cut_cross_entropy_impl": "torch_compile"}, model=gemma2(), optim="sgd")
    assert_same_training(plain, cut, **TOLERANCE)
