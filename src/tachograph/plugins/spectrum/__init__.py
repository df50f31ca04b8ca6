"""Spectrum: train the layers with the highest signal-to-noise ratio, and freeze the rest."""

from tachograph.plugins.spectrum._plugin import SpectrumOptions, SpectrumPlugin
from tachograph.plugins.spectrum._snr import LayerScore, score_layers, select_layers, signal_to_noise

__all__ = [
    "LayerScore",
    "SpectrumOptions",
    "SpectrumPlugin",
    "score_layers",
    "select_layers",
    "signal_to_noise",
]
