"""Memory and time of the loss of knowledge distillation: with the logits of all tokens, and chunked.

    python -m benchmarks.plugins.kd                      # small, on the CPU: time only
    python -m benchmarks.plugins.kd --device cuda        # 8,192 tokens, vocabulary of 128,256, bfloat16

`usual` and `chunked` learn the full vocabulary of a teacher in the same process; the time includes the logits of the
teacher, but not its other layers. `chunked, top 20` has log-probabilities of 20 tokens, which is another loss: its
errors mean nothing. See `_compare.py` for the numbers.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from torch.nn.functional import kl_div

from benchmarks.plugins._compare import Loss, add_arguments, compare, complete
from tachograph.plugins.kd import DenseTeacher, TopKTargets, kd_loss

_TEMPERATURE = 2.0
_TOP_K = 20
_SLICE = 256

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def usual(inputs: Inputs) -> torch.Tensor:
    """Return the loss with the logits of all tokens."""
    hidden, weight, labels, their_hidden, their_weight = inputs
    with torch.no_grad():
        target = torch.softmax((their_hidden @ their_weight.t()).float() / _TEMPERATURE, dim=1)
    student = torch.log_softmax((hidden @ weight.t()).float() / _TEMPERATURE, dim=1)
    return _TEMPERATURE**2 * kl_div(student, target, reduction="sum") / len(labels)


def chunked(inputs: Inputs, chunk_size: int | None = None) -> torch.Tensor:
    """Return the loss of the plugin with a teacher in the same process."""
    hidden, weight, labels, their_hidden, their_weight = inputs
    teacher = DenseTeacher(their_hidden, their_weight)
    found = kd_loss(hidden, weight, labels, teacher, temperature=_TEMPERATURE, chunk_size=chunk_size)
    return found.total / found.num_labels


def top_k(inputs: Inputs) -> torch.Tensor:
    """Return the loss of the plugin with a few log-probabilities per token."""
    hidden, weight, labels, *_ = inputs
    ids = (labels[:, None] + torch.arange(_TOP_K, device=labels.device)) % len(weight)
    logprobs = torch.full(ids.shape, -3.0, device=labels.device)
    targets = TopKTargets(ids, logprobs, torch.ones_like(ids))
    found = kd_loss(hidden, weight, labels, targets, temperature=_TEMPERATURE)
    return found.total / found.num_labels


def reference(inputs: Inputs) -> list[torch.Tensor]:
    """Return the loss and its gradients in 32 bits, computed slice by slice."""
    hidden, weight, labels, their_hidden, their_weight = (entry.detach() for entry in inputs)
    wide, theirs = weight.float().requires_grad_(), their_weight.float()
    slices = []
    total = torch.zeros((), device=hidden.device)
    for first in range(0, len(hidden), _SLICE):
        part = slice(first, first + _SLICE)
        leaf = hidden[part].float().requires_grad_()
        loss = usual((leaf, wide, labels[part], their_hidden[part].float(), theirs)) * len(leaf) / len(labels)
        loss.backward()
        total += loss.detach()
        slices.append(leaf.grad)
    return [total, torch.cat(slices), wide.grad]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    arguments = parser.parse_args()
    complete(arguments)
    tokens, vocabulary, device, dtype = arguments.tokens, arguments.vocabulary, arguments.device, arguments.dtype
    for size in arguments.hidden:
        torch.manual_seed(0)
        hidden, their_hidden = (torch.randn(tokens, size, device=device).to(dtype) for _ in range(2))
        weight, their_weight = ((torch.randn(vocabulary, size, device=device) * size**-0.5).to(dtype) for _ in range(2))
        labels = torch.randint(0, vocabulary, (tokens,), device=device)
        inputs = (hidden.requires_grad_(), weight.requires_grad_(), labels, their_hidden, their_weight)
        losses: dict[str, Loss] = {"usual": partial(usual, inputs), "chunked": partial(chunked, inputs)}
        losses.update({f"chunked, {rows} tokens": partial(chunked, inputs, rows) for rows in arguments.chunk_size})
        losses[f"chunked, top {_TOP_K}"] = partial(top_k, inputs)
        print(f"\n{tokens} tokens, vocabulary {vocabulary}, hidden size {size}, {dtype}, {device}")
        compare(losses, inputs[:2], partial(reference, inputs), arguments.rounds)


if __name__ == "__main__":
    main()
