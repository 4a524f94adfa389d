#!/usr/bin/env python3
"""Writes the seeds of the binary fuzz targets: tiny well-formed files, from which mutations reach every branch.

Needs `pip install gguf numpy safetensors`. Run from the repository root: python3 scripts/make_fuzz_seeds.py
"""

import pathlib

import gguf
import numpy as np
from safetensors.numpy import save

CORPUS = pathlib.Path("fuzz/corpus")


def gguf_seeds(folder):
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "small.gguf", "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 1e4)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_int64("negative", -3)
    writer.add_array("llama.attention.head_count_kv", [4, 2])
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "a", "ä"])
    writer.add_array("tokenizer.ggml.scores", [0.0, -1.5])
    writer.add_array("nested", [[1, 2], [3]])
    writer.add_tensor("a.weight", np.zeros((2, 3), dtype=np.float32))
    quantized = np.zeros((2, 34), dtype=np.uint8)
    writer.add_tensor("b.weight", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    writer = gguf.GGUFWriter(folder / "aligned.gguf", "gemma")
    writer.add_custom_alignment(64)
    writer.add_tensor("norm", np.ones(4, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def safetensors_seeds(folder):
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"a.weight": np.zeros((2, 3), dtype=np.float16), "b": np.zeros(0, dtype=np.int64), "c": np.array(1.0)}
    (folder / "small.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    (folder / "empty.safetensors").write_bytes(save({}))


if __name__ == "__main__":
    gguf_seeds(CORPUS / "gguf_header")
    safetensors_seeds(CORPUS / "safetensors_header")
