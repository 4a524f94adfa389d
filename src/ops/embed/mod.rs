//! Rows of an embedding table, decoded from the file's own encoding.

use crate::error::{Error, Result};
use crate::ops::matmul::RawMatrix;
use crate::ops::{Context, Tensor};

/// Row `ids[i]` of `table` `[vocab, hidden]` for every i, times `scale`: `[ids.len(), hidden]`.
///
/// # Errors
/// `Invalid` for an id outside the table.
pub fn embed(ctx: &Context, table: &RawMatrix, ids: &[u32], scale: f32) -> Result<Tensor> {
    let mut x = ctx.uninit(ids.len(), table.cols());
    for (row, &id) in x.as_mut_slice().chunks_exact_mut(table.cols()).zip(ids) {
        if id as usize >= table.rows() {
            return Err(Error::invalid(format!(
                "token id {id} is outside the vocabulary of {}",
                table.rows()
            )));
        }
        table.decode_row(id as usize, row)?;
        if scale != 1.0 {
            row.iter_mut().for_each(|v| *v *= scale);
        }
    }
    Ok(x)
}
