"""Deprecated location of `gradient_norm`."""

from tachograph.integrations._common.tensors import gradient_norm  # moved; Lightning still imports it from here

__all__ = ["gradient_norm"]
