"""A tiny model and trainers for the tests of plugins, built in code: nothing is downloaded."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("pydantic")

from tests.tiny_models import one_thread, tiny_llama  # noqa: E402

__all__ = ["one_thread"]

VOCABULARY = 64


def llama(**options):
    """Return a Llama with about 20,000 parameters; the same weights in every call."""
    return tiny_llama(**{"vocab_size": VOCABULARY, "max_position_embeddings": 64, **options})


def assert_gradients_match_differences(loss, leaves):
    """Compare the gradients of a loss with what small changes of each value do to it."""
    loss().backward()
    for leaf in leaves:
        flat = leaf.data.view(-1)
        for index in range(flat.numel()):
            middle = float(flat[index])
            values = []
            for offset in (1e-6, -1e-6):
                flat[index] = middle + offset
                values.append(float(loss().detach()))
            flat[index] = middle
            assert (values[0] - values[1]) / 2e-6 == pytest.approx(float(leaf.grad.view(-1)[index]), abs=1e-7)


def rows(count=8, length=12, masked=4):
    """Return sequences to learn by heart, with the first tokens left out of the loss."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, VOCABULARY, (count, length), generator=generator)
    labels = ids.clone()
    labels[:, :masked] = -100
    return [
        {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": label}
        for row, label in zip(ids, labels, strict=True)
    ]


@pytest.fixture
def make_trainer(tmp_path):
    """Return a function that creates a trainer of a tiny model."""

    def make(model=None, data=None, *, kind=transformers.Trainer, callbacks=(), **arguments):
        options = {
            "output_dir": str(tmp_path / "out"),
            "per_device_train_batch_size": 2,
            "max_steps": 4,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "report_to": "none",
            "save_strategy": "no",
            "use_cpu": True,
            "disable_tqdm": True,
            "seed": 5,
            **arguments,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return kind(
                model=model if model is not None else llama(),
                args=transformers.TrainingArguments(**options),
                train_dataset=data if data is not None else rows(),
                callbacks=list(callbacks),
            )

    return make


def logged(trainer, key):
    """Return the values of a metric in the logs of a trainer."""
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def weights(model):
    """Return a copy of the parameters."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}
