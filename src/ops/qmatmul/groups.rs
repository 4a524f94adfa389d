//! What the microkernel sees of a group of weights: chunks of codes and factors, from a packed record or an expanded one.
#![allow(unsafe_code)]

use super::GROUP;
use super::bits::{bits_to_2, bits_to_4, high_nibbles, low_nibbles, pairs_to_0, pairs_to_4};
use super::layout::{Codes, Format, PANEL_ROWS, Scheme, VECTOR};
use crate::ops::simd::Wide;
use crate::quant::layout::{IQ4_NL_VALUES, MXFP4_DOUBLED};

/// Four-feature chunks of a record.
pub(super) const CHUNKS: usize = GROUP / 4;
/// Bytes of as many half-precision floats as a panel has rows.
const HALVES: usize = 2 * PANEL_ROWS;

/// [`MXFP4_DOUBLED`] with the format's zero point added: unsigned and below 32.
const MXFP4_LEVELS: [i8; 16] = {
    let mut levels = MXFP4_DOUBLED;
    let mut i = 0;
    while i < levels.len() {
        levels[i] += 16;
        i += 1;
    }
    levels
};

pub(super) const fn format_of(number: u8) -> Format {
    Format::ALL[number as usize]
}

/// Scales of the rows that hold for a whole block.
#[derive(Clone, Copy)]
pub(super) struct Header<V: Wide> {
    pub(super) d: V::F32,
    /// Negative, as it is subtracted.
    pub(super) neg_dmin: V::F32,
}

impl<V: Wide> Header<V> {
    #[inline(always)]
    pub(super) unsafe fn load<const F: u8>(p: *const u8) -> Self {
        let bytes = const { format_of(F).header_bytes() };
        // SAFETY: the header has no, one or two halves per row.
        unsafe {
            let zero = V::splat(0.0);
            Self {
                d: if bytes >= HALVES {
                    V::load_f16(p)
                } else {
                    zero
                },
                neg_dmin: if bytes >= 2 * HALVES {
                    V::sub(zero, V::load_f16(p.add(HALVES)))
                } else {
                    zero
                },
            }
        }
    }
}

/// What the integer sums of a group are multiplied with, per row of a panel. What a scheme does not have is zero.
#[derive(Clone, Copy)]
pub(super) struct Factors<V: Wide> {
    /// Times the activation scale times the dot product.
    pub(super) scale: V::F32,
    /// Times the activations' scaled sum, or with `mins` times the activation scale.
    pub(super) min: V::F32,
    /// Integer scales of the first and the second 16 features, in both halves of a lane.
    pub(super) halves: [V::I32; 2],
    /// Integer mins of the first and the second 16 features, as two i16.
    pub(super) mins: V::I32,
}

/// A record of a panel.
pub(super) trait Group<V: Wide> {
    /// Chunk `c` as unsigned codes, or as what [`Wide::signed`] makes of signed bytes in the formats that have those.
    unsafe fn chunk(&self, c: usize) -> V::Bytes;
    /// Whether the record holds joined chunks, on the levels with [`Wide::MATRICES`]: then [`Group::chunk`] is not to be called there.
    const JOINED: bool;
    /// Chunks `c` and `c + 1` ([`Wide::join`]), for an even `c`.
    unsafe fn joined(&self, c: usize) -> [V::Bytes; 2];
    unsafe fn factors(&self) -> Factors<V>;
}

pub(super) struct PackedGroup<V: Wide, const F: u8> {
    pub(super) record: *const u8,
    pub(super) header: Header<V>,
}

impl<V: Wide, const F: u8> Group<V> for PackedGroup<V, F> {
    #[inline(always)]
    unsafe fn chunk(&self, c: usize) -> V::Bytes {
        // SAFETY: the caller's duty.
        unsafe { chunk::<V, F>(self.record, c) }
    }

    const JOINED: bool = false;

    #[inline(always)]
    unsafe fn joined(&self, c: usize) -> [V::Bytes; 2] {
        // SAFETY: the caller's duty.
        unsafe { V::join(self.chunk(c), self.chunk(c + 1)) }
    }

    #[inline(always)]
    unsafe fn factors(&self) -> Factors<V> {
        // SAFETY: the record's scales have `scale_bytes`.
        unsafe {
            let scales = self.record.add(const { format_of(F).code_bytes() });
            let mut factors = Factors {
                scale: self.header.d,
                min: self.header.neg_dmin,
                halves: [V::splat_i32(0); 2],
                mins: V::splat_i32(0),
            };
            match const { format_of(F).scheme() } {
                Scheme::Scale { .. } => factors.scale = V::load_f16(scales),
                Scheme::Exponent { .. } => {
                    let e = V::sub_i32(V::load_u8_i32(scales), V::splat_i32(127));
                    factors.scale = V::mul(V::exp2i(e), V::splat(0.5));
                }
                Scheme::ScaleMin => {
                    factors.scale = V::load_f16(scales);
                    factors.min = V::load_f16(scales.add(HALVES));
                }
                Scheme::KScaleMin => {
                    let float = |p| V::to_f32(V::load_u8_i32(p));
                    factors.scale = V::mul(self.header.d, float(scales));
                    factors.min = V::mul(self.header.neg_dmin, float(scales.add(PANEL_ROWS)));
                }
                Scheme::KScale16 { .. } => {
                    let pairs = V::load_i8_i16(scales);
                    factors.halves = [V::dup_lo16(pairs), V::dup_hi16(pairs)];
                }
                Scheme::KScaleMin16 => {
                    let pairs = V::load_i8_i16(scales);
                    factors.halves = [V::dup_lo16(pairs), V::dup_hi16(pairs)];
                    factors.mins = V::load_i8_i16(scales.add(HALVES));
                }
            }
            factors
        }
    }
}

/// A record whose chunks and factors stay in registers, for several tiles or rows.
#[derive(Clone, Copy)]
pub(super) struct HeldGroup<V: Wide> {
    chunks: [V::Bytes; CHUNKS],
    factors: Factors<V>,
}

impl<V: Wide> HeldGroup<V> {
    #[inline(always)]
    pub(super) unsafe fn new(group: &impl Group<V>) -> Self {
        // SAFETY: the caller's duty.
        unsafe {
            let mut chunks = [group.chunk(0); CHUNKS];
            for (c, chunk) in chunks.iter_mut().enumerate() {
                *chunk = group.chunk(c);
            }
            Self {
                chunks,
                factors: group.factors(),
            }
        }
    }
}

impl<V: Wide> Group<V> for HeldGroup<V> {
    #[inline(always)]
    unsafe fn chunk(&self, c: usize) -> V::Bytes {
        self.chunks[c]
    }

    const JOINED: bool = false;

    #[inline(always)]
    unsafe fn joined(&self, c: usize) -> [V::Bytes; 2] {
        // SAFETY: registers only.
        unsafe { V::join(self.chunks[c], self.chunks[c + 1]) }
    }

    #[inline(always)]
    unsafe fn factors(&self) -> Factors<V> {
        self.factors
    }
}

/// A record of an expanded panel: eight chunks of whole bytes, then the vectors of [`Factors`] that the scheme has. On the levels with
/// [`Wide::MATRICES`] the chunks are joined two by two.
pub(super) struct ExpandedGroup<const F: u8> {
    pub(super) record: *const u8,
}

impl<V: Wide, const F: u8> Group<V> for ExpandedGroup<F> {
    #[inline(always)]
    unsafe fn chunk(&self, c: usize) -> V::Bytes {
        debug_assert!(!V::MATRICES);
        // SAFETY: eight vectors of codes.
        unsafe { V::load_bytes(self.record.add(c * VECTOR)) }
    }

    const JOINED: bool = true;

    #[inline(always)]
    unsafe fn joined(&self, c: usize) -> [V::Bytes; 2] {
        // SAFETY: eight vectors of codes.
        unsafe {
            [
                V::load_bytes(self.record.add(c * VECTOR)),
                V::load_bytes(self.record.add((c + 1) * VECTOR)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn factors(&self) -> Factors<V> {
        let has = |vector: usize| vector < const { format_of(F).factor_vectors() };
        // SAFETY: the record ends with `factor_vectors` vectors.
        unsafe {
            let p = self.record.add(CHUNKS * VECTOR);
            let float = |i: usize| {
                if has(i) {
                    V::load(p.add(i * VECTOR).cast())
                } else {
                    V::splat(0.0)
                }
            };
            let int = |i: usize| {
                if has(i) {
                    V::load_i32(p.add(i * VECTOR).cast())
                } else {
                    V::splat_i32(0)
                }
            };
            Factors {
                scale: float(0),
                min: float(1),
                halves: [int(2), int(3)],
                mins: int(4),
            }
        }
    }
}

/// Whole blocks of expanded panels, one panel behind the other: `groups` groups of each, from `first` on.
pub(super) struct Expanded<const F: u8> {
    pub(super) panels: *const u8,
    pub(super) first: usize,
    pub(super) groups: usize,
}

impl<const F: u8> Expanded<F> {
    /// Group `g` of each of `P` panels.
    #[inline(always)]
    pub(super) unsafe fn group<const P: usize>(&self, g: usize) -> [ExpandedGroup<F>; P] {
        let bytes = const { format_of(F).expanded_bytes() };
        std::array::from_fn(|p| ExpandedGroup {
            // SAFETY: the caller's duty.
            record: unsafe { self.panels.add((p * self.groups + g - self.first) * bytes) },
        })
    }
}

/// Writes a record as an expanded one.
#[inline(always)]
pub(super) unsafe fn expand_group<V: Wide, const F: u8>(group: &PackedGroup<V, F>, out: *mut u8) {
    let count = const { format_of(F).factor_vectors() };
    // SAFETY: an expanded record has eight vectors of codes and `count` of factors.
    unsafe {
        if V::MATRICES {
            for pair in 0..CHUNKS / 2 {
                let [first, second] = group.joined(2 * pair);
                V::store_bytes(out.add(2 * pair * VECTOR), first);
                V::store_bytes(out.add((2 * pair + 1) * VECTOR), second);
            }
        } else {
            for c in 0..CHUNKS {
                V::store_bytes(out.add(c * VECTOR), group.chunk(c));
            }
        }
        let factors = group.factors();
        let p = out.add(CHUNKS * VECTOR);
        V::store(p.cast(), factors.scale);
        if count > 1 {
            V::store(p.add(VECTOR).cast(), factors.min);
        }
        if count > 2 {
            V::store_i32(p.add(2 * VECTOR).cast(), factors.halves[0]);
            V::store_i32(p.add(3 * VECTOR).cast(), factors.halves[1]);
        }
        if count > 4 {
            V::store_i32(p.add(4 * VECTOR).cast(), factors.mins);
        }
    }
}

/// Chunk `c` of a record: unsigned codes, or what [`Wide::signed`] makes of signed bytes in the formats that have those.
#[inline(always)]
unsafe fn chunk<V: Wide, const F: u8>(record: *const u8, c: usize) -> V::Bytes {
    // SAFETY: planes lie inside the record.
    unsafe {
        match const { format_of(F).codes() } {
            Codes::Nibbles => nibbles::<V>(record, c),
            Codes::NibblesBits => V::or(
                nibbles::<V>(record, c),
                bits_to_4::<V>(V::load_bytes(record.add(4 * VECTOR)), c),
            ),
            Codes::NibblesPairs => V::or(
                nibbles::<V>(record, c),
                pairs_to_4::<V>(V::load_bytes(record.add((4 + c % 2) * VECTOR)), c / 2),
            ),
            Codes::PairsBits => V::or(
                pairs::<V>(record, c),
                bits_to_2::<V>(V::load_bytes(record.add(2 * VECTOR)), c),
            ),
            Codes::Pairs => pairs::<V>(record, c),
            Codes::Bytes => V::signed(V::load_bytes(record.add(c * VECTOR))),
            Codes::Table => V::signed(V::lookup16(IQ4_NL_VALUES.as_ptr(), nibbles::<V>(record, c))),
            Codes::Levels => V::lookup16(MXFP4_LEVELS.as_ptr(), nibbles::<V>(record, c)),
        }
    }
}

#[inline(always)]
unsafe fn nibbles<V: Wide>(planes: *const u8, c: usize) -> V::Bytes {
    // SAFETY: four vectors of nibbles.
    unsafe {
        let plane = V::load_bytes(planes.add(c % 4 * VECTOR));
        if c < 4 {
            low_nibbles::<V>(plane)
        } else {
            high_nibbles::<V>(plane)
        }
    }
}

/// Bit pairs of chunk `c`, at bit 0.
#[inline(always)]
unsafe fn pairs<V: Wide>(planes: *const u8, c: usize) -> V::Bytes {
    // SAFETY: two vectors of pairs.
    unsafe { pairs_to_0::<V>(V::load_bytes(planes.add(c % 2 * VECTOR)), c / 2) }
}
