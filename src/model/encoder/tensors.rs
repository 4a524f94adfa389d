//! [`Tensors`]: the tensors of a checkpoint by canonical name. Each is used once, checked by shape, and what nobody used is
//! refused.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::formats::{TensorSource, TensorView};
use crate::nn::{Linear, WeightPath};
use crate::ops::Context;
use crate::ops::matmul::RawMatrix;

/// The tensors that were not used yet.
pub(in crate::model) struct Tensors<'a> {
    source: &'a dyn TensorSource,
    /// What they belong to, for messages.
    owner: &'a str,
    /// Names in the file by canonical name.
    unused: HashMap<String, String>,
    path: WeightPath,
}

impl<'a> Tensors<'a> {
    /// The tensors of `source` under the names that `canonical` gives them; those to which it gives none are skipped.
    ///
    /// # Errors
    /// `Invalid` when two have one name.
    pub fn new(
        source: &'a dyn TensorSource,
        owner: &'a str,
        path: WeightPath,
        canonical: impl Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        let mut unused = HashMap::new();
        for tensor in source.tensors() {
            let Some(name) = canonical(&tensor.name) else {
                continue;
            };
            if let Some(other) = unused.insert(name, tensor.name.clone()) {
                let name = &tensor.name;
                return Err(Error::invalid(format!(
                    "`{name}` and `{other}` are the same tensor of the model"
                )));
            }
        }
        Ok(Self {
            source,
            owner,
            unused,
            path,
        })
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Result<TensorView> {
        let in_file = self.unused.remove(name).ok_or_else(|| {
            let owner = self.owner;
            Error::invalid(format!(
                "the checkpoint has no tensor `{name}`, which a {owner} needs"
            ))
        })?;
        let view = self
            .source
            .find(&in_file)
            .expect("listed tensors can be found");
        if view.info.shape == shape {
            return Ok(view);
        }
        let (name, found) = (&view.info.name, &view.info.shape);
        Err(Error::invalid(format!(
            "tensor `{name}` has shape {found:?}, expected {shape:?}"
        )))
    }

    /// A matrix as it lies in the file.
    ///
    /// # Errors
    /// `Invalid` when it is missing or has another shape.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<RawMatrix> {
        let view = self.take(name, &[rows, cols])?;
        let matrix = RawMatrix::new(rows, cols, view.info.encoding, Arc::new(view.bytes));
        matrix.map_err(|error| error.context(format!("tensor `{}`", view.info.name)))
    }

    /// A vector of finite numbers.
    ///
    /// # Errors
    /// As [`Tensors::matrix`], and `Invalid` for what is not finite.
    pub fn vector(&mut self, name: &str, size: usize) -> Result<Vec<f32>> {
        let view = self.take(name, &[size])?;
        let mut values = vec![0.0; size];
        let encoding = view.info.encoding;
        let decoded = encoding.decode_row(view.bytes.as_slice(), &mut values);
        decoded.map_err(|error| error.context(format!("tensor `{}`", view.info.name)))?;
        match values.iter().position(|x| !x.is_finite()) {
            Some(at) => Err(Error::invalid(format!(
                "tensor `{}` holds {} at element {at}",
                view.info.name, values[at]
            ))),
            None => Ok(values),
        }
    }

    /// `stem.weight` `[out, inn]`, and `stem.bias` when `bias`.
    ///
    /// # Errors
    /// As [`Tensors::matrix`], and `Unsupported` for an encoding without a kernel.
    pub fn linear(
        &mut self,
        ctx: &Context,
        stem: &str,
        out: usize,
        inn: usize,
        bias: bool,
    ) -> Result<Linear> {
        let weight = self.matrix(&format!("{stem}.weight"), out, inn)?;
        let bias = match bias {
            true => Some(self.vector(&format!("{stem}.bias"), out)?),
            false => None,
        };
        Linear::new(ctx, &weight, bias, self.path)
            .map_err(|error| error.context(format!("tensor `{stem}.weight`")))
    }

    /// Refuses what was not used: it would change the output in the reference.
    ///
    /// # Errors
    /// `Unsupported`, with a name.
    pub fn refuse_unused(self) -> Result<()> {
        let mut left: Vec<&String> = self.unused.values().collect();
        left.sort();
        match left.first() {
            None => Ok(()),
            Some(first) => {
                let (count, owner) = (left.len(), self.owner);
                let text = format!(
                    "the checkpoint has {count} tensors that a {owner} does not use, such as `{first}`"
                );
                Err(Error::unsupported(text))
            }
        }
    }
}
