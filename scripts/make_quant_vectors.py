#!/usr/bin/env python3
"""Writes src/quant/vectors.txt: random blocks of every ggml type we decode, with the values the `gguf` package gives.

One line per block: TYPE BYTES_IN_HEX FLOATS_IN_HEX (little-endian f32, eight digits each). Needs `pip install gguf numpy`.
Run: python3 scripts/make_quant_vectors.py > src/quant/vectors.txt
"""

import gguf
import numpy as np
from gguf.quants import dequantize

NAMES = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL MXFP4".split()
# Byte offsets of half floats within a block: random bytes there would be NaN or infinite now and then.
HALVES = {
    "F16": [0],
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "IQ4_NL": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}  # fmt: skip


def main():
    rng = np.random.default_rng(20240607)
    for name in NAMES:
        kind = gguf.GGMLQuantizationType[name]
        _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        for block in range(12 if block_bytes < 8 else 3):
            data = rng.integers(0, 256, block_bytes, dtype=np.uint8)
            for at in HALVES.get(name, []):
                # The last block has subnormal halves, where decoders that flush them would differ.
                value = 2.0**-20 if block == 2 else 1.0
                half = np.float16(rng.normal() * value)
                data[at : at + 2] = np.frombuffer(half.tobytes(), dtype=np.uint8)
            if name == "MXFP4":
                data[0] = [data[0] % 255, 0, 1][block]  # 255 stands for NaN; 0 and 1 give subnormal scales
            if name in ("F32", "BF16"):
                data[-1] &= 0xBF  # keep the exponent away from NaN
            decoded = dequantize(data, kind).astype(np.float32)
            print(name, data.tobytes().hex(), decoded.tobytes().hex())


if __name__ == "__main__":
    main()
