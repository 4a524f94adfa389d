//! Cases that the tests of the operations and their benchmarks (`benches/ops.rs`) share.

use std::sync::Arc;

use super::matmul::RawMatrix;
use crate::quant::Encoding;

/// Encodings with an integer kernel.
pub const PACKED: [Encoding; 12] = [
    Encoding::Q4_0,
    Encoding::Q4_1,
    Encoding::Q5_0,
    Encoding::Q5_1,
    Encoding::Q8_0,
    Encoding::IQ4NL,
    Encoding::MXFP4,
    Encoding::Q2K,
    Encoding::Q3K,
    Encoding::Q4K,
    Encoding::Q5K,
    Encoding::Q6K,
];

/// (rows of activations, output features, input features) for packed weights: tiles that are full and not, panels that are
/// full and not, one block and several.
pub const PACKED_SHAPES: [(usize, usize, usize); 10] = [
    (1, 8, 256),
    (1, 19, 512),
    (2, 9, 256),
    (3, 8, 256),
    (4, 16, 256),
    (5, 24, 256),
    (8, 16, 512),
    // Three tiles, and two windows of their groups.
    (11, 33, 512),
    // More tiles than have kernels of their own, and several blocks.
    (21, 33, 768),
    // Three panels to a task of a single thread: two at once, then one.
    (17, 197, 256),
];

/// The same for float weights: any number of input features.
pub const FLOAT_SHAPES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (1, 33, 48),
    (2, 5, 17),
    (3, 2, 16),
    (4, 70, 100),
    (5, 9, 31),
    (6, 40, 64),
    (1, 9, 3100),
    (29, 65, 56),
    (13, 3, 2000),
    (9, 7, 512),
    (101, 19, 1100),
];

/// Blocks of random bytes with small half-precision scales.
///
/// Panics when a row of `cols` elements is no whole number of blocks.
pub fn random_matrix(encoding: Encoding, rows: usize, cols: usize, seed: u64) -> RawMatrix {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let row_bytes = encoding.row_bytes(cols).expect("whole blocks");
    let mut bytes: Vec<u8> = (0..row_bytes * rows)
        .map(|_| (next() >> 32) as u8)
        .collect();
    for block in bytes.chunks_exact_mut(encoding.block_bytes()) {
        write_scales(encoding, block, || {
            ((next() >> 40) as f32 / 16_777_216.0 - 0.4) * 0.01
        });
    }
    RawMatrix::new(rows, cols, encoding, Arc::new(bytes)).expect("the bytes of a matrix")
}

/// Writes what `next` gives as the scales of a block of the file; powers of two where it has those.
pub fn write_scales(encoding: Encoding, block: &mut [u8], mut next: impl FnMut() -> f32) {
    if encoding == Encoding::MXFP4 {
        // The exponent that `2^(e - 128)` has.
        block[0] = ((next().to_bits() >> 23) & 0xff) as u8 + 1;
    }
    for &at in half_offsets(encoding) {
        block[at..at + 2].copy_from_slice(&half::f16::from_f32(next()).to_le_bytes());
    }
}

/// Where half-precision scales lie in a block of the file.
fn half_offsets(encoding: Encoding) -> &'static [usize] {
    match encoding {
        Encoding::Q4_0 | Encoding::Q5_0 | Encoding::Q8_0 | Encoding::IQ4NL => &[0],
        Encoding::Q4_1 | Encoding::Q5_1 | Encoding::Q4K | Encoding::Q5K => &[0, 2],
        Encoding::Q2K => &[80, 82],
        Encoding::Q3K => &[108],
        Encoding::Q6K => &[208],
        _ => &[],
    }
}
