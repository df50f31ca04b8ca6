"""A forward pass is repeated at the fault: the operation, the line of code and the sample."""

import math

import pytest
import torch
from torch import nn

from tachograph.black_box._batch_check import check_batch
from tachograph.black_box._repeated_pass import repeat_pass
from tachograph.black_box._verdicts import Evidence, judge
from tests.black_box.test_faults import WIDTH, Data, make_model, train
from tests.tables import each


class Standardised(nn.Module):
    def forward(self, inputs):
        return (inputs - inputs.mean(1, keepdim=True)) / inputs.std(1, keepdim=True)


class Scaled(nn.Module):
    def forward(self, inputs):
        return inputs * 1e6


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, WIDTH)

    def forward(self, input_ids, attention_mask):
        states = self.embedding(input_ids)
        scores = (states @ states.transpose(1, 2)).masked_fill(attention_mask[:, None, :] == 0, -math.inf)
        return scores.softmax(-1) @ states


class Distance(nn.Module):
    """The inner module contains all parameters, the derivative of the outer one is infinite."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, inputs):
        return self.inner(inputs).square().sqrt()


def rows(num_rows, bad_value=None):
    values = torch.randn(num_rows, WIDTH)
    if bad_value is not None:
        values[2] = bad_value
    return values


def tokens(num_rows):
    mask = torch.ones(num_rows, 5, dtype=torch.long)
    mask[2] = 0
    return {"input_ids": torch.randint(0, 20, (num_rows, 5)), "attention_mask": mask}


HALF = ("cpu", torch.float16)


@each(
    "make, batch, autocast, kind, texts",
    [
        (
            lambda: nn.Sequential(Standardised(), nn.Linear(WIDTH, 1)),
            {"0": rows(4, 1.0), "1": rows(4)},
            None,
            "operation",
            ["The division in `0` (test_repeated_pass.py:", "0 / 0", "Only sample 2 of the batch (index 12 of the d"],
        ),
        (
            lambda: nn.Sequential(nn.Linear(WIDTH, 8), Scaled(), nn.Linear(8, 1)),
            {"0": rows(4)},
            HALF,
            "activation_overflow",
            ["The product in `1`", "overflow in float16 (its largest number is 65,504"],
        ),
        (Attention, tokens(4), None, "operation", ["The softmax in `Attention`", "masked (-inf)", "Only sample 2"]),
        (Distance, {"0": rows(4, 0.0)}, None, "derivative", ["the derivative of the square root at 0 is not"]),
    ],
)
def test_operation_line_and_sample_are_named(make, batch, autocast, kind, texts):
    model = make()
    before = [parameter.clone() for parameter in model.parameters()]
    state = torch.get_rng_state()
    repeated = repeat_pass(model, batch, autocast)
    verdict = judge("not_finite", Evidence(step=7, indices=[10, 11, 12, 13], repeated=repeated))
    assert (verdict.kind, verdict.confidence) == (kind, "certain"), repeated
    for text in texts:
        assert text in verdict.text, verdict.text
    assert "at step 7" in verdict.text
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_repetition_leaves_the_model_as_it_was():
    class Counting(nn.Module):
        num_calls = 0

        def forward(self, inputs):
            self.num_calls += 1
            return inputs

    counting = Counting()
    model = nn.Sequential(counting, nn.Dropout(), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1))
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert repeat_pass(model, {"0": rows(4)})["operation"] is None
    assert counting.num_calls == 0 and not calls
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_loss_is_blamed_if_the_outputs_are_finite():
    repeated = repeat_pass(make_model(), {"0": rows(4), "1": rows(4)})
    verdict = judge("not_finite", Evidence(step=7, loss_at_fault=math.nan, repeated=repeated))
    assert verdict.kind == "loss"
    assert "outputs of the model are finite" in verdict.text


def test_pass_that_cannot_be_repeated_is_left_out():
    class Raising(nn.Module):
        def forward(self, inputs):
            raise RuntimeError("not this way")

    class NeedsMore(nn.Module):
        def forward(self, inputs, lengths):
            return inputs

    for model in (Raising(), NeedsMore(), nn.Linear(WIDTH, 1, device="meta")):
        assert repeat_pass(model, {"inputs": rows(4)}) == {}


def test_mask_without_tokens_is_named():
    batch = tokens(4)
    evidence = Evidence(step=7, indices=[10, 11, 12, 13], batch=check_batch(batch))
    verdict = judge("not_finite", evidence)
    assert (verdict.kind, verdict.details["indices"]) == ("empty_mask", [12])
    assert "`attention_mask` has no token for sample 2 of the batch (index 12 of the dataset)" in verdict.text


@pytest.mark.parametrize(("value", "kind"), [(math.inf, "bad_input"), (0.0, "operation")])
def test_sample_is_named_in_a_run(logs, value, kind):
    """One infinite value saturates the activations, so only the weights of the next step are not finite."""
    data = Data()
    if kind == "bad_input":
        data.inputs[41, 3] = value
        dump = train(logs, data=data)
    else:
        data.inputs[41] = value
        dump = train(logs, data=data, model=nn.Sequential(Standardised(), *make_model()))
    assert (dump.verdict.kind, dump.verdict.confidence) == (kind, "certain"), dump.verdict
    assert dump.verdict.details["indices"] == [41]


def test_weights_that_are_too_large():
    def row(name, size):
        return {"name": name, "shape": [8, 8], "weight": {"rms": size / 2, "absmax": size}}

    layers = [row("0.weight", 0.2), row("2.weight", 1e30), row("4.weight", 0.1)]
    verdict = judge("not_finite", Evidence(step=0, layers=layers))
    assert verdict.kind == "huge_weights"
    assert "The weights of `2.weight` reach 1e+30 at step 0, a usual layer's reach 0.2" in verdict.text
    layers = [row(f"{number}.weight", 1e20) for number in range(4)]
    verdict = judge("not_finite", Evidence(step=9, layers=layers, losses=[0.3, 0.2], lrs=[(9, 0.05)]))
    assert verdict.kind == "learning_rate"
    assert "have grown to 1e+20" in verdict.text and "the scale and the reduction of the loss" in verdict.text
