"""Sparse fine-tuning: train a pruned model and keep its zeros, with the recipes of LLM Compressor.

`LLMCompressorPlugin` is the plugin. `load_compressed_model`, `load_compressed` and `decompress` read the folder that
`save_compressed` writes; `compress` writes one from a folder of a dense model.
"""

from tachograph.plugins.llm_compressor._compressed import (
    compress,
    decompress,
    load_compressed,
    load_compressed_model,
)
from tachograph.plugins.llm_compressor._plugin import LLMCompressorPlugin

__all__ = ["LLMCompressorPlugin", "compress", "decompress", "load_compressed", "load_compressed_model"]
