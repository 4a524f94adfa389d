//! The interleaved weight layout: panels of sixteen rows side by side.
//!
//! A panel stores its rows' blocks one after the other. A block is an optional header (half-precision scales of the
//! sixteen rows) followed by records of 32 input features each; a record is codes, then scales:
//!
//! - *codes*: the 512 unsigned codes of 16 rows × 32 features form eight *chunks* of 64 bytes; chunk c holds features
//!   `4c..4c+4` of row 0, then of row 1, and so on: one 32-bit lane per row. Chunks are stored as bit planes:
//!   four vectors of nibbles (chunk c low, c + 4 high), two vectors of bit pairs (chunk `j + 2t` at bits `2t` of vector
//!   j), one vector of single bits (chunk t at bit t), or eight vectors of whole bytes;
//! - *scales*: one value per row and kind, rows side by side.
//!
//! | format | codes | zero | header | scales of a record |
//! |---|---|---|---|---|
//! | Q4_0 | nibbles | 8 | | d (f16) |
//! | Q4_1 | nibbles | | | d, m (f16) |
//! | Q5_0 | nibbles, bits | 16 | | d |
//! | Q5_1 | nibbles, bits | | | d, m |
//! | Q8_0 | bytes, signed | | | d |
//! | IQ4_NL | nibbles through a table, signed | | | d |
//! | MXFP4 | nibbles through a table | 16 | | exponent (u8) |
//! | Q4_K | nibbles | | d, dmin | scale, min (u8) |
//! | Q5_K | nibbles, bits | | d, dmin | scale, min (u8) |
//! | Q6_K | nibbles, pairs | 32 | d | scales of both halves (i8 pairs) |
//! | Q3_K | pairs, bits | 4 | d | scales of both halves (i8 pairs) |
//! | Q2_K | pairs | | d, dmin | scales, then mins of both halves (i8 pairs) |

use super::GROUP;
use crate::quant::Encoding;

/// Rows of a panel: one per lane of [`crate::ops::simd::Wide`].
pub const PANEL_ROWS: usize = 16;
/// Bytes of a vector, and of a chunk.
pub(super) const VECTOR: usize = 4 * PANEL_ROWS;

/// No expanded record is larger.
pub(super) const MAX_EXPANDED_BYTES: usize = VECTOR * 13;

/// How the codes of a record are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codes {
    /// 4 bits.
    Nibbles,
    /// 5 bits.
    NibblesBits,
    /// 6 bits.
    NibblesPairs,
    /// 3 bits.
    PairsBits,
    /// 2 bits.
    Pairs,
    /// 8 bits, signed.
    Bytes,
    /// 4 bits that index the IQ4_NL table of signed bytes.
    Table,
    /// 4 bits that index the MXFP4 table, whose values are moved to where they are unsigned.
    Levels,
}

/// How a record's integer sums become floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    /// `d (q - 2^zero_log2)`; without a zero for signed codes.
    Scale { zero_log2: Option<u32> },
    /// `2^(e - 128) (q - 2^zero_log2)`.
    Exponent { zero_log2: u32 },
    /// `d q + m`.
    ScaleMin,
    /// `d scale q - dmin min`, per 32.
    KScaleMin,
    /// `d scale (q - 2^zero_log2)`, per 16.
    KScale16 { zero_log2: u32 },
    /// `d scale q - dmin min`, per 16.
    KScaleMin16,
}

/// A weight format of the interleaved layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, non_camel_case_types)]
pub enum Format {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    IQ4_NL,
    MXFP4,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl Format {
    /// Every format, by its number.
    pub(super) const ALL: [Self; 12] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::IQ4_NL,
        Self::MXFP4,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// The format of an encoding, if it has one.
    pub fn of(encoding: Encoding) -> Option<Self> {
        Some(match encoding {
            Encoding::Q4_0 => Self::Q4_0,
            Encoding::Q4_1 => Self::Q4_1,
            Encoding::Q5_0 => Self::Q5_0,
            Encoding::Q5_1 => Self::Q5_1,
            Encoding::Q8_0 => Self::Q8_0,
            Encoding::IQ4NL => Self::IQ4_NL,
            Encoding::MXFP4 => Self::MXFP4,
            Encoding::Q2K => Self::Q2_K,
            Encoding::Q3K => Self::Q3_K,
            Encoding::Q4K => Self::Q4_K,
            Encoding::Q5K => Self::Q5_K,
            Encoding::Q6K => Self::Q6_K,
            _ => return None,
        })
    }

    pub(super) const fn codes(self) -> Codes {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q4_K => Codes::Nibbles,
            Self::Q5_0 | Self::Q5_1 | Self::Q5_K => Codes::NibblesBits,
            Self::Q8_0 => Codes::Bytes,
            Self::IQ4_NL => Codes::Table,
            Self::MXFP4 => Codes::Levels,
            Self::Q2_K => Codes::Pairs,
            Self::Q3_K => Codes::PairsBits,
            Self::Q6_K => Codes::NibblesPairs,
        }
    }

    pub(super) const fn scheme(self) -> Scheme {
        match self {
            Self::Q4_0 => Scheme::Scale { zero_log2: Some(3) },
            Self::Q5_0 => Scheme::Scale { zero_log2: Some(4) },
            Self::Q8_0 | Self::IQ4_NL => Scheme::Scale { zero_log2: None },
            Self::MXFP4 => Scheme::Exponent { zero_log2: 4 },
            Self::Q4_1 | Self::Q5_1 => Scheme::ScaleMin,
            Self::Q4_K | Self::Q5_K => Scheme::KScaleMin,
            Self::Q6_K => Scheme::KScale16 { zero_log2: 5 },
            Self::Q3_K => Scheme::KScale16 { zero_log2: 2 },
            Self::Q2_K => Scheme::KScaleMin16,
        }
    }

    /// Records per block.
    pub(super) const fn groups_per_block(self) -> usize {
        match self.scheme() {
            Scheme::Scale { .. } | Scheme::Exponent { .. } | Scheme::ScaleMin => 1,
            Scheme::KScaleMin | Scheme::KScale16 { .. } | Scheme::KScaleMin16 => 8,
        }
    }

    /// Bytes of codes per record.
    pub(super) const fn code_bytes(self) -> usize {
        VECTOR
            * match self.codes() {
                Codes::Nibbles | Codes::Table | Codes::Levels => 4,
                Codes::NibblesBits => 5,
                Codes::NibblesPairs => 6,
                Codes::PairsBits => 3,
                Codes::Pairs => 2,
                Codes::Bytes => 8,
            }
    }

    /// Bytes of scales per record.
    pub(super) const fn scale_bytes(self) -> usize {
        PANEL_ROWS
            * match self.scheme() {
                Scheme::Exponent { .. } => 1,
                Scheme::Scale { .. } | Scheme::KScaleMin | Scheme::KScale16 { .. } => 2,
                Scheme::ScaleMin | Scheme::KScaleMin16 => 4,
            }
    }

    /// Bytes before the first record of a block.
    pub(super) const fn header_bytes(self) -> usize {
        PANEL_ROWS
            * match self.scheme() {
                Scheme::Scale { .. } | Scheme::Exponent { .. } | Scheme::ScaleMin => 0,
                Scheme::KScale16 { .. } => 2,
                Scheme::KScaleMin | Scheme::KScaleMin16 => 4,
            }
    }

    /// Bytes of one record.
    pub(super) const fn record_bytes(self) -> usize {
        self.code_bytes() + self.scale_bytes()
    }

    /// Vectors of factors in an expanded record (`cpu.rs`).
    pub(super) const fn factor_vectors(self) -> usize {
        match self.scheme() {
            Scheme::Scale { .. } | Scheme::Exponent { .. } => 1,
            Scheme::ScaleMin | Scheme::KScaleMin => 2,
            Scheme::KScale16 { .. } => 4,
            Scheme::KScaleMin16 => 5,
        }
    }

    /// Bytes of an expanded record: eight chunks of whole bytes, then factors.
    pub(super) const fn expanded_bytes(self) -> usize {
        VECTOR * (8 + self.factor_vectors())
    }

    /// Bytes of one block of a panel.
    pub(super) const fn block_bytes(self) -> usize {
        self.header_bytes() + self.groups_per_block() * self.record_bytes()
    }

    /// Bytes of a panel of rows of `cols` elements; `None` when they are no whole number of blocks.
    pub fn panel_bytes(self, cols: usize) -> Option<usize> {
        let features = self.groups_per_block() * GROUP;
        cols.is_multiple_of(features)
            .then(|| cols / features)
            .and_then(|blocks| blocks.checked_mul(self.block_bytes()))
    }
}
