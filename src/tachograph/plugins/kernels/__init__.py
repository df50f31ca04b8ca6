"""Kernels: faster experts for mixture-of-experts models."""

from tachograph.plugins.kernels._plugin import KernelsOptions, KernelsPlugin

__all__ = ["KernelsOptions", "KernelsPlugin"]
