"""Kernels for the tests of `tests.plugins.triton_interpreter`, which runs them in a process of its own."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.libdevice import log1p, rsqrt, tanh


@triton.jit
def _kernel(x_pointer, y_pointer, scale, count, SIZE: tl.constexpr):
    offsets = tl.arange(0, SIZE)
    x = tl.load(x_pointer + offsets, mask=offsets < count, other=0.0)
    y = scale.to(tl.float32) * tanh(x) + rsqrt(1.0 + x * x) + log1p(x * x) + tl.sum(x, axis=0)
    tl.store(y_pointer + offsets, y, mask=offsets < count)


def case_scaled_row():
    """A kernel with a float argument, a mask and functions of libdevice."""
    x = torch.randn(13)
    y = torch.full((16,), -1.0)
    _kernel[(1,)](x, y, 0.5, 13, SIZE=16)
    expected = 0.5 * torch.tanh(x) + torch.rsqrt(1 + x * x) + torch.log1p(x * x) + x.sum()
    return {"difference": float((y[:13] - expected).abs().max()), "padding": y[13:].tolist()}


def case_liger_norm():
    """A kernel of a package, forward and backward."""
    from liger_kernel.transformers import LigerRMSNorm

    norm, x = LigerRMSNorm(24), torch.randn(3, 24, requires_grad=True)
    expected = torch.nn.functional.rms_norm(x, (24,), eps=1e-6)
    weights = torch.randn(3, 24)
    (reference,) = torch.autograd.grad((expected * weights).sum(), x)
    actual = norm(x)
    (gradient,) = torch.autograd.grad((actual * weights).sum(), x)
    return [float((actual - expected).abs().max().detach()), float((gradient - reference).abs().max())]


def case_that_fails():
    """An error, which the parent process raises."""
    raise ValueError("the message of the error")
