//! [`TensorTable`]: the tensors of all files of a model, in order and by name.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::formats::source::{MappedBytes, TensorInfo, TensorView};

/// Tensors with their bytes; a name exists once.
#[derive(Debug, Default)]
pub(super) struct TensorTable {
    infos: Vec<TensorInfo>,
    bytes: Vec<MappedBytes>,
    by_name: HashMap<String, usize>,
}

impl TensorTable {
    /// Appends a tensor.
    ///
    /// # Errors
    /// `Invalid` when the name exists already.
    pub(super) fn push(&mut self, info: TensorInfo, bytes: MappedBytes) -> Result<()> {
        if self
            .by_name
            .insert(info.name.clone(), self.infos.len())
            .is_some()
        {
            return Err(Error::invalid(format!(
                "tensor `{}` exists more than once",
                info.name
            )));
        }
        self.infos.push(info);
        self.bytes.push(bytes);
        Ok(())
    }

    /// All tensors in order.
    pub(super) fn infos(&self) -> &[TensorInfo] {
        &self.infos
    }

    /// The tensor called `name`.
    pub(super) fn find(&self, name: &str) -> Option<TensorView> {
        let &at = self.by_name.get(name)?;
        Some(TensorView {
            info: self.infos[at].clone(),
            bytes: self.bytes[at].clone(),
        })
    }
}
