"""The loss of knowledge distillation, computed in chunks of tokens.

For a token with student logits ``z`` and temperature ``T``, the loss is

    alpha * T**2 * divergence(teacher, softmax(z / T)) + ce_alpha * cross_entropy(z, label)

The factor ``T**2`` keeps the size of gradients independent of the temperature; it is part of the value and of the
gradient alike. With `beta` 0, the divergence is the forward Kullback-Leibler divergence, sum p_t (log p_t - log p_s);
with 1, the reverse one, sum p_s (log p_s - log p_t); in between, the generalised Jensen-Shannon divergence
``beta * KL(p_t, m) + (1 - beta) * KL(p_s, m)`` with ``m = beta * p_t + (1 - beta) * p_s``.

The teacher is either a second model (`DenseTeacher`), whose logits are computed chunk by chunk too, or the
log-probabilities of its top k tokens (`TopKTargets`), which are renormalised at the temperature of the loss. The
student's probabilities cover the full vocabulary, unless `normalize_topk` renormalises them too.

Row ``t`` of all inputs is about the prediction of token ``t + 1``. As in the chunked cross entropy, the gradients of a
chunk are computed in the forward pass, and logits of all tokens never exist at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from tachograph.plugins._chunked_loss import ChunkedLoss, HeadGradients, wide_dtype

__all__ = ["PAD_LOGPROB", "DenseTeacher", "KDLoss", "TopKTargets", "kd_loss"]

PAD_LOGPROB = -1e9
"""The log-probability of entries that are not used."""
_CHUNK_BYTES = 256 << 20
"""The size of the 32-bit logits of a chunk, if its size is not given."""
_MAX_ROWS = 1024


class TopKTargets(NamedTuple):
    """The most likely tokens of the teacher, [tokens, k] each. The log-probabilities are at temperature 1."""

    token_ids: torch.Tensor
    logprobs: torch.Tensor
    mask: torch.Tensor


class DenseTeacher(NamedTuple):
    """The hidden states of a teacher and its output head; see `HeadInput`."""

    hidden_states: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None


class KDLoss(NamedTuple):
    """The result of `kd_loss`: sums over the tokens with a label.

    Args:
        total: the loss, which has a gradient.
        divergence: the divergence, without alpha and the square of the temperature.
        cross_entropy: the cross entropy with the labels, without its factor.
        num_labels: the number of tokens with a label.
        num_targets: the number of labels for which the teacher has a distribution.
        topk_mass: the probability of the teacher's top k tokens at temperature 1.
        agreements: the number of tokens for which student and teacher find the same token most likely.
    """

    total: torch.Tensor
    divergence: torch.Tensor
    cross_entropy: torch.Tensor
    num_labels: int
    num_targets: torch.Tensor
    topk_mass: torch.Tensor
    agreements: torch.Tensor


class _Settings(NamedTuple):
    alpha: float
    ce_alpha: float
    temperature: float
    beta: float
    normalize_topk: bool
    scale: float
    softcap: float | None
    rows: int


def kd_loss(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    teacher: TopKTargets | DenseTeacher,
    *,
    alpha: float = 1.0,
    ce_alpha: float = 0.0,
    temperature: float = 1.0,
    beta: float = 0.0,
    normalize_topk: bool = False,
    bias: torch.Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    ignore_index: int = -100,
    chunk_size: int | None = None,
) -> KDLoss:
    """Return the summed loss of the tokens that have a label.

    Args:
        hidden_states: the hidden states of the student, [tokens, size].
        weight: the weight of its output head, [vocabulary, size].
        labels: the token that each row predicts, [tokens].
        teacher: the teacher's distribution of the same tokens.
        alpha: the factor of the divergence.
        ce_alpha: the factor of the cross entropy with the labels.
        temperature: the temperature of both distributions.
        beta: the kind of divergence: 0 is forward, 1 is reverse, and a value in between is Jensen-Shannon.
        normalize_topk: renormalise the student's probabilities over the teacher's top k tokens.
        bias: the bias of the output head.
        scale: the factor of the student's logits.
        softcap: the bound of the student's logits.
        ignore_index: the label of tokens that are left out.
        chunk_size: the tokens per chunk; chosen if None.
    """
    rows = (labels != ignore_index).nonzero().squeeze(1)
    size = chunk_size or min(max(_CHUNK_BYTES // (4 * weight.shape[0]), 16), _MAX_ROWS)
    settings = _Settings(alpha, ce_alpha, temperature, beta, normalize_topk, scale, softcap, size)
    total, *sums = _KDFunction.apply(hidden_states, weight, bias, labels, rows, teacher, settings)
    divergence, cross_entropy, num_targets, topk_mass, agreements = sums
    return KDLoss(total, divergence, cross_entropy, len(rows), num_targets, topk_mass, agreements)


class _KDFunction(ChunkedLoss):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        rows: torch.Tensor,
        teacher: TopKTargets | DenseTeacher,
        settings: _Settings,
    ) -> tuple[torch.Tensor, ...]:
        wide = wide_dtype(weight.dtype)
        gradients = HeadGradients(hidden_states, weight, bias, ctx.needs_input_grad[:3], sum_dtype=wide)
        sums = torch.zeros(6, dtype=wide, device=hidden_states.device)
        for start in range(0, len(rows), settings.rows):
            chunk_rows = rows[start : start + settings.rows]
            chunk = hidden_states.index_select(0, chunk_rows)
            logits = _logits(chunk, weight, bias).to(wide)
            with torch.enable_grad():
                leaf = logits.requires_grad_(bool(gradients))
                parts = _chunk_loss(leaf, labels.index_select(0, chunk_rows), _select(teacher, chunk_rows), settings)
                slopes = torch.autograd.grad(parts[0], leaf)[0] if gradients else None
            if slopes is not None:
                gradients.add(chunk, chunk_rows, weight, slopes.to(weight.dtype))
            sums += torch.stack([entry.detach().to(wide) for entry in parts])
        ctx.gradients = gradients
        results = tuple(entry.clone() for entry in sums)
        ctx.mark_non_differentiable(*results[1:])
        return results


def _chunk_loss(
    raw: torch.Tensor, labels: torch.Tensor, teacher: TopKTargets | DenseTeacher, settings: _Settings
) -> list[torch.Tensor]:
    """Return the loss of a chunk, and the sums of `KDLoss` in its order."""
    logits = _scale_and_cap(raw, settings.scale, settings.softcap)
    temperature = settings.temperature
    student = torch.log_softmax(logits / temperature, dim=1)
    if isinstance(teacher, DenseTeacher):
        with torch.no_grad():
            teacher_logits = _logits(teacher.hidden_states, teacher.weight, teacher.bias).to(raw.dtype)
            teacher_logits = _scale_and_cap(teacher_logits, teacher.scale, teacher.softcap)
            target = torch.log_softmax(teacher_logits / temperature, dim=1)
            best = teacher_logits.argmax(1)
            has_target = torch.ones_like(labels, dtype=torch.bool)
            mass = has_target.to(raw.dtype)
        mask = None
    else:
        mask = teacher.mask.bool()
        has_target = mask.any(1)
        logprobs = teacher.logprobs.to(raw.dtype).masked_fill(~mask, PAD_LOGPROB)
        target = torch.log_softmax(logprobs / temperature, dim=1)
        best = teacher.token_ids.gather(1, logprobs.argmax(1, keepdim=True)).squeeze(1)
        mass = (logprobs.exp() * mask).sum(1)
        student = student.gather(1, teacher.token_ids)
        if settings.normalize_topk:
            student = torch.log_softmax(student.masked_fill(~mask, PAD_LOGPROB), dim=1)
    divergence = (_divergence(target, student, mask, settings.beta) * has_target).sum()
    if settings.ce_alpha:
        cross_entropy = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    else:
        with torch.no_grad():
            cross_entropy = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    total = settings.alpha * temperature**2 * divergence + settings.ce_alpha * cross_entropy
    agreements = ((logits.argmax(1) == best) & has_target).sum()
    return [total, divergence, cross_entropy, has_target.sum(), (mass * has_target).sum(), agreements]


def _divergence(target: torch.Tensor, student: torch.Tensor, mask: torch.Tensor | None, beta: float) -> torch.Tensor:
    """Return the divergence of each row, given log-probabilities."""
    if beta == 0:
        terms = target.exp() * (target - student)
    elif beta == 1:
        terms = student.exp() * (student - target)
    else:
        factor = target.new_tensor([beta, 1 - beta]).log()
        middle = torch.logaddexp(target + factor[0], student + factor[1])
        terms = beta * target.exp() * (target - middle) + (1 - beta) * student.exp() * (student - middle)
    if mask is not None:
        terms = terms.masked_fill(~mask, 0.0)
    return terms.sum(1)


def _logits(hidden_states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.nn.functional.linear(hidden_states, weight, bias)


def _scale_and_cap(logits: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
    if scale != 1.0:
        logits = logits * scale
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def _select(teacher: TopKTargets | DenseTeacher, rows: torch.Tensor) -> TopKTargets | DenseTeacher:
    """Return the rows of a teacher."""
    if isinstance(teacher, DenseTeacher):
        return teacher._replace(hidden_states=teacher.hidden_states.index_select(0, rows))
    return TopKTargets(*(entry.index_select(0, rows) for entry in teacher))
