//! Latent attention: what makes latents and queries, and the matrices of heads.

use std::sync::Arc;

use super::tensors::Tensors;
use crate::error::Result;
use crate::model::checkpoint::Stacked;
use crate::model::config::{BiasPresence, MlaConfig, ModelConfig};
use crate::model::layers::{Mla, Queries};
use crate::model::names::Part;
use crate::nn::{ExpertStack, HeadStack, StackShape};
use crate::ops::matmul::RawMatrix;
use crate::quant::Encoding;

pub(super) fn load(
    tensors: &mut Tensors<'_>,
    config: &ModelConfig,
    index: usize,
    own: &MlaConfig,
) -> Result<Mla> {
    let hidden = config.hidden_size;
    let q_rows = own.heads * own.query_dim();
    let queries = match own.query_rank {
        None => {
            Queries::Direct(tensors.linear(index, Part::Q, q_rows, hidden, BiasPresence::Absent)?)
        }
        Some(rank) => Queries::Latent {
            a: tensors.linear(index, Part::QA, rank, hidden, own.latent_bias)?,
            norm: tensors.norm(Some(index), Part::QANorm, rank, &own.latent_norm)?,
            b: tensors.linear(index, Part::QB, q_rows, rank, BiasPresence::Absent)?,
        },
    };
    let kv_rows = own.kv_rank + own.rope_dim;
    let kv_a = tensors.linear(index, Part::KvA, kv_rows, hidden, own.latent_bias)?;
    let kv_norm = tensors.norm(Some(index), Part::KvANorm, own.kv_rank, &own.latent_norm)?;
    let (to_latent, to_value) = head_matrices(tensors, index, own)?;
    let values = own.heads * own.value_dim;
    Ok(Mla {
        queries,
        kv_a,
        kv_norm,
        to_latent: HeadStack::new(to_latent),
        to_value: HeadStack::new(to_value),
        o: tensors.linear(index, Part::O, hidden, values, own.o_bias)?,
        pages: config.pages_of(index).expect("the layer has attention"),
        pairing: config.ropes[own.rope].pairing,
        config: own.clone(),
    })
}

/// Per head `[rank, nope]`, which brings queries into the space of latents, and `[value, rank]`.
fn head_matrices(
    tensors: &mut Tensors<'_>,
    index: usize,
    own: &MlaConfig,
) -> Result<(ExpertStack, ExpertStack)> {
    let (heads, rank, nope, value) = (own.heads, own.kv_rank, own.nope_dim, own.value_dim);
    let name = tensors.weight_name(Some(index), Part::KB);
    if tensors.file.has(&name) {
        let keys = tensors.file.stacked(&name, heads, rank, nope)?;
        let name = tensors.weight_name(Some(index), Part::VB);
        let values = tensors.file.stacked(&name, heads, value, rank)?;
        let all = |stack: &Stacked| (0..heads).map(|h| stack.matrix(h)).collect::<Result<_>>();
        return Ok((
            tensors.file.experts(all(&keys)?, None)?,
            tensors.file.experts(all(&values)?, None)?,
        ));
    }
    let name = tensors.weight_name(Some(index), Part::KvB);
    let both = tensors
        .file
        .stacked_rows(&name, heads, nope + value, rank)?;
    let values = (0..heads).map(|h| both.rows(h, nope..nope + value));
    let values = values.collect::<Result<Vec<_>>>()?;
    // Floats stay what they are, and packed values become exact ones: rows cannot be packed the other way round.
    let encoding = match both.encoding() {
        encoding if encoding.is_float() => encoding,
        _ => Encoding::F32,
    };
    let shape = StackShape {
        encoding,
        count: heads,
        rows: rank,
        cols: nope,
    };
    let transposed = |h: usize| transposed(&both.rows(h, 0..nope)?, encoding);
    let keys = tensors.file.converted_experts(shape, &transposed, None);
    let keys = keys.map_err(|e| tensors.file.in_tensor(&name, e))?;
    Ok((keys, tensors.file.experts(values, None)?))
}

/// Rows as columns, as floats of the encoding `encoding`, in which every element has a place.
fn transposed(matrix: &RawMatrix, encoding: Encoding) -> Result<RawMatrix> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let size = encoding.row_bytes(1).expect("floats stand alone");
    let mut bytes = vec![0; rows * cols * size];
    let mut decoded = vec![0.0; cols];
    for row in 0..rows {
        let mut put = |col: usize, element: &[u8]| {
            bytes[(col * rows + row) * size..][..size].copy_from_slice(element);
        };
        if matrix.encoding() == encoding {
            let elements = matrix.row(row).chunks_exact(size).enumerate();
            elements.for_each(|(col, element)| put(col, element));
        } else {
            matrix.decode_row(row, &mut decoded)?;
            let elements = decoded.iter().enumerate();
            elements.for_each(|(col, element)| put(col, &element.to_le_bytes()));
        }
    }
    RawMatrix::new(cols, rows, encoding, Arc::new(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cases::random_matrix;

    #[test]
    fn rows_become_columns_of_the_same_values() {
        for (from, to) in [
            (Encoding::BF16, Encoding::BF16),
            (Encoding::F32, Encoding::F32),
            (Encoding::Q8_0, Encoding::F32),
            (Encoding::Q4_0, Encoding::F32),
        ] {
            let matrix = random_matrix(from, 5, 64, 3);
            let other = transposed(&matrix, to).unwrap();
            assert_eq!((other.rows(), other.cols()), (64, 5));
            let (mut row, mut column) = ([0.0; 64], [0.0; 5]);
            for r in 0..5 {
                matrix.decode_row(r, &mut row).unwrap();
                for (c, value) in row.iter().enumerate() {
                    other.decode_row(c, &mut column).unwrap();
                    assert_eq!(column[r].to_bits(), value.to_bits());
                }
            }
        }
    }
}
