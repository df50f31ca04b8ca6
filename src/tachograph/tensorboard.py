"""`SummaryWriter` with the interface of `torch.utils.tensorboard`, which records into a run and writes no event files.

Example:
    >>> from tachograph.tensorboard import SummaryWriter
    >>> writer = SummaryWriter("runs/greyjacket")
    >>> writer.add_scalar("train/loss", loss, step)
"""

from __future__ import annotations

from tachograph.bridges.tensorboard.facade import GlobalSummaryWriter, SummaryWriter

__all__ = ["GlobalSummaryWriter", "SummaryWriter"]
