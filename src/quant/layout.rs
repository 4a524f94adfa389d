//! Where the parts of each ggml block lie, and how packed scales unpack.
//!
//! All numbers are little endian; `d`, `m` and `dmin` are IEEE half floats. The structs of the same names are in ggml's
//! `src/ggml-common.h` (<https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h>), the order of elements in
//! `src/ggml-quants.c`. Offsets are bytes from the start of a block; a block's first byte may be misaligned.

macro_rules! block {
    ($(#[$doc:meta])* $module:ident, $len:literal elements, $bytes:literal bytes: $($(#[$part_doc:meta])* $part:ident = $offset:literal),* $(,)?) => {
        $(#[$doc])*
        pub mod $module {
            /// Elements in a block.
            pub const BLOCK_LEN: usize = $len;
            /// Bytes of a block.
            pub const BLOCK_BYTES: usize = $bytes;
            $($(#[$part_doc])* pub const $part: usize = $offset;)*
        }
    };
}

block! {
    /// `x = d * (q - 8)`; byte `i` of `qs` holds element `i` in its low nibble and element `i + 16` in its high one.
    q4_0, 32 elements, 18 bytes:
    /// Scale.
    D = 0,
    /// 16 bytes of nibbles.
    QS = 2,
}

block! {
    /// `x = d * q + m`; nibbles as in [`q4_0`].
    q4_1, 32 elements, 20 bytes:
    /// Scale.
    D = 0,
    /// Minimum.
    M = 2,
    /// 16 bytes of nibbles.
    QS = 4,
}

block! {
    /// `x = d * (q - 16)`; nibbles as in [`q4_0`], bit `i` of the 32-bit `qh` is bit 4 of element `i`.
    q5_0, 32 elements, 22 bytes:
    /// Scale.
    D = 0,
    /// 4 bytes of fifth bits.
    QH = 2,
    /// 16 bytes of nibbles.
    QS = 6,
}

block! {
    /// `x = d * q + m`; bits as in [`q5_0`].
    q5_1, 32 elements, 24 bytes:
    /// Scale.
    D = 0,
    /// Minimum.
    M = 2,
    /// 4 bytes of fifth bits.
    QH = 4,
    /// 16 bytes of nibbles.
    QS = 8,
}

block! {
    /// `x = d * q`; 32 signed bytes.
    q8_0, 32 elements, 34 bytes:
    /// Scale.
    D = 0,
    /// 32 signed bytes.
    QS = 2,
}

block! {
    /// `x = d * VALUES[q]`; nibbles as in [`q4_0`], [`IQ4_NL_VALUES`] is the table.
    iq4_nl, 32 elements, 18 bytes:
    /// Scale.
    D = 0,
    /// 16 bytes of nibbles.
    QS = 2,
}

block! {
    /// `x = (d * scale) * q - dmin * min`; 16 groups of 16 elements, byte `g` of `scales` holds group `g`'s scale in the
    /// low nibble and its minimum in the high one. Elements come in two halves of 128: in half `h`, element `32 * k + i`
    /// (`k` < 4, `i` < 32) is bits `2k..2k + 2` of byte `32 * h + i` of `qs`.
    q2_k, 256 elements, 84 bytes:
    /// 16 bytes of scales and minima.
    SCALES = 0,
    /// 64 bytes of 2-bit codes.
    QS = 16,
    /// Scale of the scales.
    D = 80,
    /// Scale of the minima.
    DMIN = 82,
}

block! {
    /// `x = (d * scale) * (q - 4)`; 16 groups of 16 elements with scales by [`q3_k_scales`]. The low two
    /// bits of `q` lie as in [`q2_k`]; bit 2 of element `128 * h + 32 * k + i` is bit `4 * h + k` of byte `i` of `hmask`.
    q3_k, 256 elements, 110 bytes:
    /// 32 bytes of third bits.
    HMASK = 0,
    /// 64 bytes of 2-bit codes.
    QS = 32,
    /// 12 bytes of 6-bit scales.
    SCALES = 96,
    /// Scale of the scales.
    D = 108,
}

block! {
    /// `x = (d * scale) * q - dmin * min`; 8 groups of 32 elements with scales and minima by [`k_scale_min`].
    /// Of each 64 elements, the first 32 are the low nibbles of 32 bytes, the others the high ones.
    q4_k, 256 elements, 144 bytes:
    /// Scale of the scales.
    D = 0,
    /// Scale of the minima.
    DMIN = 2,
    /// 12 bytes of 6-bit scales and minima.
    SCALES = 4,
    /// 128 bytes of nibbles.
    QS = 16,
}

block! {
    /// As [`q4_k`] with a fifth bit: bit `g` of byte `i` of `qh` is bit 4 of element `i` of group `g`.
    q5_k, 256 elements, 176 bytes:
    /// Scale of the scales.
    D = 0,
    /// Scale of the minima.
    DMIN = 2,
    /// 12 bytes of 6-bit scales and minima.
    SCALES = 4,
    /// 32 bytes of fifth bits.
    QH = 16,
    /// 128 bytes of nibbles.
    QS = 48,
}

block! {
    /// `x = (d * scale) * (q - 32)`; 16 groups of 16 elements with signed byte scales. Elements come in two halves of 128:
    /// in half `h`, element `32 * k + i` has its low nibble in byte `64 * h + 32 * (k % 2) + i` of `ql` (the high half of the byte
    /// for `k` >= 2), and its upper two bits in bits `2k..2k + 2` of byte `32 * h + i` of `qh`.
    q6_k, 256 elements, 210 bytes:
    /// 128 bytes of nibbles.
    QL = 0,
    /// 64 bytes of upper bits.
    QH = 128,
    /// 16 signed byte scales.
    SCALES = 192,
    /// Scale of the scales.
    D = 208,
}

block! {
    /// `x = 2^(e - 128) * VALUES[q]`; nibbles as in [`q4_0`], [`MXFP4_DOUBLED`] is the table. The format of
    /// <https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf>: floats of 4 bits (E2M1) with a
    /// power of two (E8M0) for every 32; `e` = 255 means NaN.
    mxfp4, 32 elements, 17 bytes:
    /// Exponent of the scale.
    E = 0,
    /// 16 bytes of nibbles.
    QS = 1,
}

/// Twice the values behind the codes of MXFP4, which are whole numbers.
pub const MXFP4_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `2^(e - 128)`: what [`MXFP4_DOUBLED`] is multiplied with; NaN for 255.
#[inline]
pub fn mxfp4_scale(e: u8) -> f32 {
    match e {
        // Below the normal numbers.
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        2..=254 => f32::from_bits((u32::from(e) - 1) << 23),
        255 => f32::NAN,
    }
}

/// The values behind the 4-bit codes of IQ4_NL (and IQ4_XS).
pub const IQ4_NL_VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Scale and minimum (6 bits each) of group `group` (0 to 7) of a Q4_K or Q5_K block, from its 12 packed bytes.
///
/// Groups 0 to 3 keep their scale in the low 6 bits of byte `group` and their minimum in those of byte `group + 4`; groups 4 to 7
/// have low nibbles (scale low, minimum high) in byte `group + 4` and their upper two bits atop bytes `group - 4` and `group`.
#[inline]
pub fn k_scale_min(group: usize, scales: &[u8; 12]) -> (u8, u8) {
    if group < 4 {
        (scales[group] & 63, scales[group + 4] & 63)
    } else {
        let low = scales[group + 4];
        (
            (low & 15) | (scales[group - 4] >> 6) << 4,
            (low >> 4) | (scales[group] >> 6) << 4,
        )
    }
}

/// All eight scales and mins of [`k_scale_min`].
#[inline]
pub fn k_scales_mins(scales: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let word =
        |i: usize| u32::from_le_bytes([scales[i], scales[i + 1], scales[i + 2], scales[i + 3]]);
    let (a, b, c) = (word(0), word(4), word(8));
    let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let top = |word: u32| ((word >> 6) & 0x0303_0303) << 4;
    let scales = join(a & 0x3f3f_3f3f, (c & 0x0f0f_0f0f) | top(a));
    let mins = join(b & 0x3f3f_3f3f, ((c >> 4) & 0x0f0f_0f0f) | top(b));
    (scales.to_le_bytes(), mins.to_le_bytes())
}

/// The 16 scales of a Q3_K block, already recentred (6-bit code minus 32), from its 12 packed bytes.
///
/// Scale `g` has its low nibble in byte `g % 8` (low half for `g` < 8), its upper two bits in byte `8 + g % 4` at bit `2 * (g / 4)`.
#[inline]
pub fn q3_k_scales(scales: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|g| {
        let low = (scales[g % 8] >> (4 * (g / 8))) & 15;
        let high = (scales[8 + g % 4] >> (2 * (g / 4))) & 3;
        (low | high << 4).cast_signed() - 32
    })
}
