"""DenseMixer: the gradient of routers, against a formula written out in plain torch."""

from __future__ import annotations

import copy

import peft
import pytest
import torch
from torch.nn.functional import linear, softmax

from tachograph.exceptions import PluginError
from tachograph.plugins import PluginSession, apply, densemixer
from tests.plugins.conftest import llama, logged, rows
from tests.tiny_models import tiny_moe

KINDS = ("qwen3_moe", "qwen2_moe", "olmoe")


def make_model(kind="qwen3_moe", **options):
    sizes = {"shared_expert_intermediate_size": 24} if kind == "qwen2_moe" else {}
    if kind == "olmoe":
        sizes = {"intermediate_size": 16}
    model = tiny_moe(kind, num_experts=6, num_local_experts=6, **sizes, **options).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "mlp" in name:
                parameter.normal_(std=0.5)  # so that the weights of the experts differ
    return model


def block_of(model):
    return model.model.layers[0].mlp


def formula(block, hidden_states):
    """Return the output of a block as DenseMixer defines it: the value of the chosen experts, the gradient of all."""
    gate, experts = block.gate, block.experts
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    probabilities = softmax(linear(x, gate.weight), dim=-1)
    chosen = torch.topk(probabilities, gate.top_k, dim=-1).indices
    mask = torch.zeros_like(probabilities).scatter(1, chosen, 1.0)
    weights = probabilities
    if gate.norm_topk_prob:
        total = (probabilities * mask).sum(dim=-1, keepdim=True)
        weights = probabilities * (1 - mask) / total.detach() + probabilities * mask / total
    dense, sparse = torch.zeros_like(x), torch.zeros_like(x)
    for expert in range(gate.num_experts):
        first, second = linear(x, experts.gate_up_proj[expert]).chunk(2, dim=-1)
        output = linear(torch.nn.functional.silu(first) * second, experts.down_proj[expert])
        # The gradient of an expert that was not chosen is zero.
        output = output * mask[:, [expert]] + (output * (1 - mask[:, [expert]])).detach()
        dense = dense + output * weights[:, [expert]]
        sparse = sparse + output * (weights * mask)[:, [expert]]
    result = sparse.detach() + dense - dense.detach()
    if hasattr(block, "shared_expert"):
        result = result + torch.sigmoid(block.shared_expert_gate(x)) * block.shared_expert(x)
    return result.reshape(hidden_states.shape)


def gradients(function, block, hidden_states, cotangent):
    leaves = [hidden_states, *block.parameters()]
    output = function(hidden_states)
    return output.detach(), dict(
        zip(
            ["hidden_states", *(name for name, _ in block.named_parameters())],
            torch.autograd.grad((output * cotangent).sum(), leaves),
            strict=True,
        )
    )


@pytest.fixture
def apply_to():
    """Return a function that applies the plugin to a model without a trainer."""
    sessions = []

    def apply_to(model):
        session = PluginSession.open(["densemixer"], {})
        sessions.append(session)
        session.model_hook("post_model_load", model)
        return session

    yield apply_to
    for session in sessions:
        session.close()


def test_gradients_equal_the_formula(apply_to, monkeypatch):
    for kind in KINDS:
        for is_normed in (True, False):
            model = make_model(kind, norm_topk_prob=is_normed)
            block = block_of(model)
            hidden_states = torch.randn(2, 7, 32, requires_grad=True)
            cotangent = torch.randn(2, 7, 32)
            inputs = (block, hidden_states, cotangent)
            plain_output, plain = gradients(block, *inputs)
            expected_output, expected = gradients(lambda values, block=block: formula(block, values), *inputs)
            session = apply_to(model)
            for chunk_bytes in (64 * 2**20, 4 * 16 * 4 * 5, 1):  # all at once, five rows, one row
                monkeypatch.setattr(densemixer, "_CHUNK_BYTES", chunk_bytes)
                output, actual = gradients(block, *inputs)
                assert torch.equal(output, plain_output)
                torch.testing.assert_close(output, expected_output, atol=1e-5, rtol=1e-5)
                for name, value in expected.items():
                    torch.testing.assert_close(actual[name], value, atol=2e-5, rtol=1e-4, msg=f"{kind} {name}")
                for name, value in plain.items():
                    is_changed = name in ("gate.weight", "hidden_states")
                    assert torch.allclose(actual[name], value, atol=1e-6) is not is_changed, name
            session.close()
            output, after = gradients(block, *inputs)
            assert torch.equal(after["gate.weight"], plain["gate.weight"])


def test_memory_of_the_backward_pass_is_bounded(apply_to, monkeypatch):
    sizes = []
    monkeypatch.setattr(densemixer, "_CHUNK_BYTES", 4 * 16 * 4 * 8)
    model = make_model()
    apply_to(model)
    output = block_of(model)(torch.randn(4, 20, 32, requires_grad=True))
    block_of(model).experts.act_fn.register_forward_hook(
        lambda module, inputs, values: sizes.append(values[..., 0].numel())
    )
    output.sum().backward()
    assert sum(sizes) == 80 * 6
    assert max(sizes) == 8


def test_evaluation_and_inference_are_left_alone(apply_to):
    model = make_model()
    ids = torch.randint(3, 64, (1, 9))
    session = apply_to(model)
    (plugin,) = session.plugins
    with torch.no_grad():
        model(ids)
    model.eval()(ids).logits.sum().backward()
    assert not plugin.is_active()
    model.train()(ids).logits.sum().backward()
    assert plugin.is_active()


def train(make_trainer, model, **arguments):
    trainer = make_trainer(model, rows(), **arguments)
    with apply(trainer, ["densemixer"]):
        trainer.train()
    return trainer


@pytest.mark.filterwarnings("ignore")
def test_training_reports_metrics_and_works_with_checkpointing(make_trainer):
    model = make_model(num_hidden_layers=2)
    plain = make_trainer(copy.deepcopy(model), rows())
    plain.train()
    trainer = train(make_trainer, copy.deepcopy(model))
    checkpointed = train(make_trainer, copy.deepcopy(model), gradient_checkpointing=True)
    assert logged(trainer, "loss")[0] == pytest.approx(logged(plain, "loss")[0], abs=1e-6)
    assert logged(trainer, "loss")[-1] != pytest.approx(logged(plain, "loss")[-1], abs=1e-6)
    assert logged(checkpointed, "loss") == pytest.approx(logged(trainer, "loss"), abs=1e-5)
    prefix = "plugin/densemixer/"
    assert logged(trainer, f"{prefix}active") == [1.0] * 4
    assert logged(trainer, f"{prefix}flops_ratio") == [3.0] * 4
    assert all(0 < value <= 1 for value in logged(trainer, f"{prefix}expert_load_entropy"))
    assert all(value > 0 for value in logged(trainer, f"{prefix}router_grad_norm"))


@pytest.mark.filterwarnings("ignore")
def test_frozen_experts_and_routers_train(make_trainer):
    for options in ({"target_modules": ["q_proj"]}, {"target_modules": ["q_proj"], "modules_to_save": ["gate"]}):
        torch.manual_seed(2)
        adapter = peft.LoraConfig(r=2, init_lora_weights=False, **options)
        model = peft.get_peft_model(make_model(), adapter)
        experts = block_of(model.get_base_model()).experts.gate_up_proj
        before = experts.clone()
        trainer = train(make_trainer, model)
        assert logged(trainer, "plugin/densemixer/active") == [1.0] * 4
        assert torch.equal(experts, before) and experts.grad is None
        has_router = bool(logged(trainer, "plugin/densemixer/router_grad_norm"))
        assert has_router is ("modules_to_save" in options)


@pytest.mark.filterwarnings("ignore")
def test_mixed_precision_is_close_to_32_bits(make_trainer):
    model = make_model()
    wide = train(make_trainer, copy.deepcopy(model))
    narrow = train(make_trainer, model, bf16=True)
    assert logged(narrow, "loss") == pytest.approx(logged(wide, "loss"), rel=0.02)
    norms = [logged(trainer, "plugin/densemixer/router_grad_norm")[0] for trainer in (narrow, wide)]
    assert norms[0] == pytest.approx(norms[1], rel=0.1)


def test_load_entropy_is_relative():
    assert float(densemixer._relative_entropy(torch.full((8,), 5.0))) == pytest.approx(1)
    assert float(densemixer._relative_entropy(torch.tensor([9.0, 0, 0, 0]))) == pytest.approx(0)


def test_models_and_options_that_do_not_fit_are_an_error(make_trainer):
    with pytest.raises(PluginError, match="no block of experts that is supported: .*olmoe, qwen2_moe, qwen3_moe"):
        apply(make_trainer(), ["densemixer"])
    with pytest.raises(PluginError, match="changed nothing|no block of experts"):
        apply(make_trainer(llama()), ["axolotl.integrations.densemixer.DenseMixerPlugin"])
    adapter = peft.LoraConfig(r=2, target_parameters=["mlp.experts.gate_up_proj"])
    with pytest.raises(PluginError, match="experts has an adapter"):
        apply(make_trainer(peft.get_peft_model(make_model(), adapter)), ["densemixer"])
    with pytest.raises(PluginError, match="both replace the experts"):
        PluginSession.open(["densemixer", "kernels"], {"use_scattermoe": True})
    session = PluginSession.open(["densemixer"], {"dense_mixer": False})
    assert session.plan(make_model()) == {"densemixer": ["off: dense_mixer is false"]}
    session.close()


def test_plan_names_the_cost_and_frozen_routers():
    session = PluginSession.open(["densemixer"], {})
    model = make_model()
    (line,) = session.plan(model)["densemixer"]
    assert "the router of 1 block gets the gradient of all 6 experts, not only of 2" in line
    model.requires_grad_(False)
    assert "the routers are frozen" in session.plan(model)["densemixer"][1]
    session.close()
