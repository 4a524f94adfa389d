//! [`Encoding`]: ggml's tensor types by number and name, and the plain dtypes other containers use.
//!
//! Numbers and names: `enum ggml_type` in ggml's `include/ggml.h`, and the table in
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Block layouts are in [`super::layout`].

use std::fmt;

use crate::error::{Error, Result};
use crate::quant::layout::mxfp4;
use crate::quant::{decode, layout};

/// How the elements of a weight tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Encoding {
    /// 32-bit floats.
    F32,
    /// IEEE half-precision floats.
    F16,
    /// The upper half of 32-bit floats.
    BF16,
    /// 4-bit blocks of 32 with a scale.
    Q4_0,
    /// 4-bit blocks of 32 with a scale and a minimum.
    Q4_1,
    /// 5-bit blocks of 32 with a scale.
    Q5_0,
    /// 5-bit blocks of 32 with a scale and a minimum.
    Q5_1,
    /// 8-bit blocks of 32 with a scale.
    Q8_0,
    /// 2-bit super-blocks of 256.
    Q2K,
    /// 3-bit super-blocks of 256.
    Q3K,
    /// 4-bit super-blocks of 256.
    Q4K,
    /// 5-bit super-blocks of 256.
    Q5K,
    /// 6-bit super-blocks of 256.
    Q6K,
    /// 4-bit codes into a fixed non-linear table, blocks of 32 with a scale.
    IQ4NL,
    /// Floats of 4 bits with a power of two for every 32.
    MXFP4,
    /// 64-bit floats; listed, not decoded.
    F64,
    /// 8-bit floats with 4 exponent and 3 mantissa bits; listed, not decoded here.
    F8E4M3,
    /// 8-bit floats with 5 exponent and 2 mantissa bits; listed, not decoded here.
    F8E5M2,
    /// Powers of two in 8 bits (scales of microscaling formats); listed, not decoded here.
    F8E8M0,
    /// Booleans, one byte each; listed, not decoded.
    Bool,
    /// Signed bytes; listed, not decoded.
    I8,
    /// Unsigned bytes; listed, not decoded.
    U8,
    /// Signed 16-bit integers; listed, not decoded.
    I16,
    /// Unsigned 16-bit integers; listed, not decoded.
    U16,
    /// Signed 32-bit integers; listed, not decoded.
    I32,
    /// Unsigned 32-bit integers; listed, not decoded.
    U32,
    /// Signed 64-bit integers; listed, not decoded.
    I64,
    /// Unsigned 64-bit integers; listed, not decoded.
    U64,
}

impl Encoding {
    /// Every encoding, for tables and tests.
    pub const ALL: [Encoding; 28] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::IQ4NL,
        Self::MXFP4,
        Self::F64,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::F8E8M0,
        Self::Bool,
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
    ];

    /// The encoding behind ggml's type number.
    ///
    /// # Errors
    /// `Unsupported`, naming the type as ggml does, when this build does not read it or nobody knows it.
    pub fn from_ggml(number: u32) -> Result<Self> {
        Ok(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            20 => Self::IQ4NL,
            24 => Self::I8,
            25 => Self::I16,
            26 => Self::I32,
            27 => Self::I64,
            28 => Self::F64,
            30 => Self::BF16,
            39 => Self::MXFP4,
            other => return Err(unsupported_ggml_type(other)),
        })
    }

    /// ggml's number of this encoding, or `None` when ggml has none.
    pub fn to_ggml(self) -> Option<u32> {
        (0..=39).find(|&number| Self::from_ggml(number).is_ok_and(|encoding| encoding == self))
    }

    /// Name, elements per block, bytes per block.
    fn traits(self) -> (&'static str, usize, usize) {
        use layout::{iq4_nl, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0};
        match self {
            Self::F32 => ("F32", 1, 4),
            Self::F16 => ("F16", 1, 2),
            Self::BF16 => ("BF16", 1, 2),
            Self::Q4_0 => ("Q4_0", q4_0::BLOCK_LEN, q4_0::BLOCK_BYTES),
            Self::Q4_1 => ("Q4_1", q4_1::BLOCK_LEN, q4_1::BLOCK_BYTES),
            Self::Q5_0 => ("Q5_0", q5_0::BLOCK_LEN, q5_0::BLOCK_BYTES),
            Self::Q5_1 => ("Q5_1", q5_1::BLOCK_LEN, q5_1::BLOCK_BYTES),
            Self::Q8_0 => ("Q8_0", q8_0::BLOCK_LEN, q8_0::BLOCK_BYTES),
            Self::Q2K => ("Q2_K", q2_k::BLOCK_LEN, q2_k::BLOCK_BYTES),
            Self::Q3K => ("Q3_K", q3_k::BLOCK_LEN, q3_k::BLOCK_BYTES),
            Self::Q4K => ("Q4_K", q4_k::BLOCK_LEN, q4_k::BLOCK_BYTES),
            Self::Q5K => ("Q5_K", q5_k::BLOCK_LEN, q5_k::BLOCK_BYTES),
            Self::Q6K => ("Q6_K", q6_k::BLOCK_LEN, q6_k::BLOCK_BYTES),
            Self::IQ4NL => ("IQ4_NL", iq4_nl::BLOCK_LEN, iq4_nl::BLOCK_BYTES),
            Self::MXFP4 => ("MXFP4", mxfp4::BLOCK_LEN, mxfp4::BLOCK_BYTES),
            Self::F64 => ("F64", 1, 8),
            Self::F8E4M3 => ("F8_E4M3", 1, 1),
            Self::F8E5M2 => ("F8_E5M2", 1, 1),
            Self::F8E8M0 => ("F8_E8M0", 1, 1),
            Self::Bool => ("BOOL", 1, 1),
            Self::I8 => ("I8", 1, 1),
            Self::U8 => ("U8", 1, 1),
            Self::I16 => ("I16", 1, 2),
            Self::U16 => ("U16", 1, 2),
            Self::I32 => ("I32", 1, 4),
            Self::U32 => ("U32", 1, 4),
            Self::I64 => ("I64", 1, 8),
            Self::U64 => ("U64", 1, 8),
        }
    }

    /// The name as ggml (or, for what ggml does not have, safetensors) spells it, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.traits().0
    }

    /// Elements in one block; 1 for plain dtypes.
    pub fn block_len(self) -> usize {
        self.traits().1
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        self.traits().2
    }

    /// Bytes of a row of `cols` elements, or `None` when `cols` is no multiple of the block or the product overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        let (_, block_len, block_bytes) = self.traits();
        if cols.is_multiple_of(block_len) {
            (cols / block_len).checked_mul(block_bytes)
        } else {
            None
        }
    }

    /// Whether elements are plain floats of any width (not blocks, not integers).
    pub fn is_float(self) -> bool {
        matches!(
            self,
            Self::F32
                | Self::F16
                | Self::BF16
                | Self::F64
                | Self::F8E4M3
                | Self::F8E5M2
                | Self::F8E8M0
        )
    }

    /// Whether [`Encoding::find_non_finite`] looks for anything.
    pub fn can_be_non_finite(self) -> bool {
        self.is_float() || self == Self::MXFP4
    }

    /// The first element of `bytes` that is NaN or infinite, for encodings of plain floats and MXFP4; others are not looked at.
    pub fn find_non_finite(self, bytes: &[u8]) -> Option<usize> {
        fn find<const N: usize>(bytes: &[u8], is_bad: impl Fn([u8; N]) -> bool) -> Option<usize> {
            /// Elements that are looked at without stopping, which compilers turn into vector code.
            const STRIDE: usize = 1024;
            let (elements, _) = bytes.as_chunks::<N>();
            let mut strides = elements.chunks(STRIDE);
            let stride = strides.position(|s| s.iter().fold(false, |bad, e| bad | is_bad(*e)))?;
            let begin = stride * STRIDE;
            let at = elements[begin..].iter().position(|e| is_bad(*e))?;
            Some(begin + at)
        }
        match self {
            Self::F32 => find(bytes, |e| u32::from_le_bytes(e) << 1 >= 0xff00_0000),
            Self::F16 => find(bytes, |e| u16::from_le_bytes(e) << 1 >= 0xf800),
            Self::BF16 => find(bytes, |e| u16::from_le_bytes(e) << 1 >= 0xff00),
            Self::MXFP4 => find(bytes, |b: [u8; mxfp4::BLOCK_BYTES]| b[mxfp4::E] == u8::MAX)
                .map(|block| block * mxfp4::BLOCK_LEN),
            Self::F64 => find(bytes, |e| !f64::from_le_bytes(e).is_finite()),
            Self::F8E4M3 => find(bytes, |[e]: [u8; 1]| e & 0x7f == 0x7f),
            Self::F8E5M2 => find(bytes, |[e]: [u8; 1]| e & 0x7c == 0x7c),
            _ => None,
        }
    }

    /// Whether elements are packed in blocks with scales.
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Whether [`Encoding::decode_row`] can decode it.
    pub fn is_decodable(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16) || self.is_quantized()
    }

    /// Decodes one row (or any whole number of blocks) into `out`: the readable scalar reference, with the bits ggml's own
    /// decoders give when multiplication and addition are rounded separately.
    ///
    /// # Errors
    /// `Unsupported` for dtypes that hold no weights, `Invalid` when `bytes` is not exactly the encoding of `out.len()` elements.
    pub fn decode_row(self, bytes: &[u8], out: &mut [f32]) -> Result<()> {
        if !self.is_decodable() {
            return Err(Error::unsupported(format!(
                "cannot decode elements of type `{self}` as weights"
            )));
        }
        if self.row_bytes(out.len()) != Some(bytes.len()) {
            return Err(Error::invalid(format!(
                "{} bytes are no row of {} elements of type `{self}` (blocks of {} elements in {} bytes)",
                bytes.len(),
                out.len(),
                self.block_len(),
                self.block_bytes()
            )));
        }
        decode::row(self, bytes, out);
        Ok(())
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// ggml's name of a type this build does not read.
fn unread_ggml_name(number: u32) -> Option<&'static str> {
    Some(match number {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        29 => "IQ1_M",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => return None,
    })
}

fn unsupported_ggml_type(number: u32) -> Error {
    let hint = "pick a file of another quantisation, such as `Q4_K_M` or `Q8_0`";
    match unread_ggml_name(number) {
        Some(name) => {
            Error::unsupported(format!("tensor type `{name}` is not supported")).with_hint(hint)
        }
        None => {
            Error::unsupported(format!("tensor type number {number} is unknown")).with_hint(hint)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_row_that_is_no_whole_number_of_blocks_has_no_size() {
        assert_eq!(Encoding::Q4K.row_bytes(512), Some(288));
        assert_eq!(Encoding::Q4K.row_bytes(128), None);
        assert_eq!(Encoding::F32.row_bytes(usize::MAX / 2), None);
        assert_eq!(Encoding::Q8_0.row_bytes(usize::MAX - 31), None);
    }

    #[test]
    fn decoding_refuses_lengths_that_disagree_and_types_that_are_no_weights() {
        let mut out = [0.0; 32];
        let short = Encoding::Q4_0.decode_row(&[0; 17], &mut out).unwrap_err();
        assert_eq!(short.kind(), ErrorKind::Invalid);
        assert!(
            short.to_string().contains("17 bytes") && short.to_string().contains("`Q4_0`"),
            "{short}"
        );
        let odd = Encoding::Q4_0
            .decode_row(&[0; 18], &mut out[..31])
            .unwrap_err();
        assert_eq!(odd.kind(), ErrorKind::Invalid);
        let integers = Encoding::I32.decode_row(&[0; 128], &mut out).unwrap_err();
        assert_eq!(integers.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn unread_types_are_refused_by_name_and_unknown_ones_by_number() {
        for (number, name) in [
            (16, "`IQ2_XXS`"),
            (40, "`NVFP4`"),
            (34, "`TQ1_0`"),
            (4000, "4000"),
        ] {
            let error = Encoding::from_ggml(number).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn ggml_numbers_and_names_are_one_to_one() {
        let mut names = std::collections::HashSet::new();
        for number in 0..64 {
            match (Encoding::from_ggml(number), unread_ggml_name(number)) {
                (Ok(encoding), None) => {
                    assert_eq!(encoding.to_ggml(), Some(number));
                    assert!(names.insert(encoding.name()));
                }
                (Err(_), Some(name)) => assert!(names.insert(name)),
                (Err(_), None) => assert!(number > 42, "{number} has no name"),
                (Ok(_), Some(name)) => panic!("{name} is both read and refused"),
            }
        }
        let every_name: std::collections::HashSet<_> =
            Encoding::ALL.into_iter().map(Encoding::name).collect();
        assert_eq!(every_name.len(), Encoding::ALL.len());
    }

    #[test]
    fn floats_that_are_none_are_found_in_every_encoding_and_finite_ones_are_not() {
        /// An encoding, its largest finite element and two that are none.
        type Case = (Encoding, &'static [u8], [&'static [u8]; 2]);
        let cases: [Case; 5] = [
            (
                Encoding::F32,
                &[0xff, 0xff, 0x7f, 0xff],
                [&[0, 0, 0x80, 0x7f], &[1, 0, 0x80, 0xff]],
            ),
            (Encoding::F16, &[0xff, 0xfb], [&[0, 0x7c], &[1, 0xfc]]),
            (
                Encoding::BF16,
                &[0x7f, 0xff],
                [&[0x80, 0x7f], &[0x81, 0xff]],
            ),
            (Encoding::F8E4M3, &[0xfe], [&[0x7f], &[0xff]]),
            (Encoding::F8E5M2, &[0xfb], [&[0x7c], &[0xff]]),
        ];
        for (encoding, largest, bad) in cases {
            let mut bytes = largest.repeat(3000);
            assert_eq!(encoding.find_non_finite(&bytes), None, "{encoding:?}");
            for bad in bad {
                let at = 2500 * bad.len();
                let old = bytes.splice(at..at + bad.len(), bad.iter().copied());
                let old: Vec<u8> = old.collect();
                assert_eq!(
                    encoding.find_non_finite(&bytes),
                    Some(2500),
                    "{encoding:?} {bad:?}"
                );
                bytes.splice(at..at + bad.len(), old);
            }
        }
    }
}
