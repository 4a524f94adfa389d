//! [`Checkpoint`]: the tensors of a file by canonical name. Each is taken once and checked on the way, and what nobody took is
//! refused.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::config::BiasPresence;
use crate::error::{Error, Result};
use crate::formats::{TensorSource, TensorView};
use crate::nn::{ExpertStack, Linear, StackShape, WeightPath};
use crate::ops::Context;
use crate::ops::matmul::RawMatrix;
use crate::quant::Encoding;

/// The tensors of one file that nobody took yet.
pub(super) struct Checkpoint<'a> {
    /// `None`: nothing is read, the model is only weighed.
    ctx: Option<&'a Context>,
    source: &'a dyn TensorSource,
    /// What they belong to, for messages.
    owner: String,
    path: WeightPath,
    /// Names in the file by canonical name.
    names: HashMap<String, String>,
    /// Canonical names of those that were taken or left out.
    used: HashSet<String>,
}

impl<'a> Checkpoint<'a> {
    /// The tensors of `source`, which are those of an `owner`, under the names that `canonical` gives them; those to which it gives
    /// none are skipped. Without `ctx` nothing is read.
    ///
    /// # Errors
    /// `Invalid` when two have one name.
    pub fn new(
        ctx: Option<&'a Context>,
        source: &'a dyn TensorSource,
        owner: String,
        path: WeightPath,
        mut canonical: impl FnMut(&str) -> Option<String>,
    ) -> Result<Self> {
        let mut names = HashMap::new();
        for tensor in source.tensors() {
            let name = &tensor.name;
            if let Some(canonical) = canonical(name)
                && let Some(other) = names.insert(canonical, name.clone())
            {
                return Err(Error::invalid(format!(
                    "`{name}` and `{other}` are the same tensor of the model"
                )));
            }
        }
        Ok(Self {
            ctx,
            source,
            owner,
            path,
            names,
            used: HashSet::new(),
        })
    }

    /// Whether the file has a tensor that nobody took yet, by canonical name.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains_key(name) && !self.used.contains(name)
    }

    /// Leaves out the tensor called `name`, if the file has it; whether it does.
    pub fn skip(&mut self, name: &str) -> bool {
        self.has(name) && self.used.insert(name.to_owned())
    }

    /// `error` with the tensor that it is about, by the file's own name.
    pub fn in_tensor(&self, name: &str, error: Error) -> Error {
        let own = self.names.get(name).map_or(name, String::as_str);
        error.context(format!("tensor `{own}`"))
    }

    /// A linear layer: `stem.weight` `[out, inn]`, and `stem.bias` `[out]` where `bias` says so.
    pub fn linear(
        &mut self,
        stem: &str,
        out: usize,
        inn: usize,
        bias: BiasPresence,
    ) -> Result<Linear> {
        self.linear_for(stem, out, inn, bias, self.path)
    }

    /// [`Self::linear`], multiplied in floats whatever its encoding.
    pub fn exact_linear(
        &mut self,
        stem: &str,
        out: usize,
        inn: usize,
        bias: BiasPresence,
    ) -> Result<Linear> {
        self.linear_for(stem, out, inn, bias, WeightPath::Reference)
    }

    fn linear_for(
        &mut self,
        stem: &str,
        out: usize,
        inn: usize,
        bias: BiasPresence,
        path: WeightPath,
    ) -> Result<Linear> {
        let name = format!("{stem}.weight");
        let matrix = self.matrix(&name, out, inn)?;
        let bias = self.bias(stem, out, bias)?;
        let linear = self.build_for(&matrix, bias, path);
        linear.map_err(|e| self.in_tensor(&name, e))
    }

    /// [`Self::exact_linear`] with one output and no bias, which GGUF files store as a vector.
    pub fn exact_row(&mut self, name: &str, inn: usize) -> Result<Linear> {
        let view = self.take(name)?;
        if view.info.shape != [inn] {
            expect_shape(&view, &[1, inn])?;
        }
        self.check(&view)?;
        let matrix = rows_of_view(&view, inn, 0..1)?;
        self.build_for(&matrix, None, WeightPath::Reference)
    }

    /// Linear layers over one input that lie in one tensor: their output features are its rows, one layer after the other.
    pub fn split<const N: usize>(
        &mut self,
        stem: &str,
        features: [usize; N],
        inn: usize,
        bias: BiasPresence,
    ) -> Result<[Linear; N]> {
        let name = format!("{stem}.weight");
        let all = features.iter().sum();
        let view = self.checked(&name, &[all, inn])?;
        let bias = self.bias(stem, all, bias)?;
        let mut first = 0;
        let mut layers = Vec::with_capacity(N);
        for rows in features {
            let range = first..first + rows;
            let matrix = rows_of_view(&view, inn, range.clone())?;
            let bias = bias.as_ref().map(|bias| bias[range].to_vec());
            let linear = self.build(&matrix, bias);
            layers.push(linear.map_err(|e| self.in_tensor(&name, e))?);
            first += rows;
        }
        Ok(layers.try_into().expect("one layer per part"))
    }

    /// Weights of a depthwise convolution: `[channels, kernel]`, as `[channels, 1, kernel]` in safetensors files.
    pub fn conv(&mut self, name: &str, channels: usize, kernel: usize) -> Result<Vec<f32>> {
        let view = self.take(name)?;
        if view.info.shape != [channels, 1, kernel] {
            expect_shape(&view, &[channels, kernel])?;
        }
        self.decoded(&view)
    }

    /// A layer over `matrix`, interleaved for the integer kernels where they take it.
    pub fn build(&self, matrix: &RawMatrix, bias: Option<Vec<f32>>) -> Result<Linear> {
        self.build_for(matrix, bias, self.path)
    }

    fn build_for(
        &self,
        matrix: &RawMatrix,
        bias: Option<Vec<f32>>,
        path: WeightPath,
    ) -> Result<Linear> {
        match self.ctx {
            Some(ctx) => Linear::new(ctx, matrix, bias, path),
            None => Ok(Linear::weighed(matrix, bias, path)),
        }
    }

    /// The same matrix of every expert, interleaved for the integer kernels where they take it.
    pub fn experts(&self, matrices: Vec<RawMatrix>, bias: Option<Vec<f32>>) -> Result<ExpertStack> {
        if let Some(ctx) = self.ctx {
            return ExpertStack::new(ctx, matrices, bias, self.path);
        }
        let first = &matrices[0];
        let shape = StackShape {
            encoding: first.encoding(),
            count: matrices.len(),
            rows: first.rows(),
            cols: first.cols(),
        };
        Ok(ExpertStack::weighed(shape, bias, self.path))
    }

    /// [`Self::experts`] of matrices that `make` makes of what the file holds, one by one.
    pub fn converted_experts(
        &self,
        shape: StackShape,
        make: &(dyn Fn(usize) -> Result<RawMatrix> + Sync),
        bias: Option<Vec<f32>>,
    ) -> Result<ExpertStack> {
        match self.ctx {
            Some(ctx) => ExpertStack::made(ctx, shape, make, bias, self.path),
            None => Ok(ExpertStack::weighed(shape, bias, self.path)),
        }
    }

    /// The matrix `[rows, cols]` called `name`.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<RawMatrix> {
        let view = self.checked(name, &[rows, cols])?;
        rows_of_view(&view, cols, 0..rows)
    }

    /// The matrix `[rows, cols]` called `name`, of which single rows will be read: an embedding table.
    pub fn table(&mut self, name: &str, rows: usize, cols: usize) -> Result<RawMatrix> {
        let table = self.matrix(name, rows, cols)?;
        if self.ctx.is_some() {
            let first = table.decode_row(0, &mut vec![0.0; cols]);
            first.map_err(|e| self.in_tensor(name, e))?;
        }
        Ok(table)
    }

    /// The `count` matrices `[rows, cols]` that are stacked in the tensor `[count, rows, cols]` called `name`.
    pub fn stacked(
        &mut self,
        name: &str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Stacked> {
        let view = self.checked(name, &[count, rows, cols])?;
        Ok(Stacked {
            view,
            count,
            rows,
            cols,
        })
    }

    /// The same in a tensor `[count * rows, cols]`.
    pub fn stacked_rows(
        &mut self,
        name: &str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Stacked> {
        let view = self.checked(name, &[count * rows, cols])?;
        Ok(Stacked {
            view,
            count,
            rows,
            cols,
        })
    }

    /// The vector of `size` elements called `name`.
    pub fn vector(&mut self, name: &str, size: usize) -> Result<Vec<f32>> {
        self.floats(name, &[size])
    }

    /// The bytes of the tensor of unsigned bytes called `name`.
    pub fn bytes(&mut self, name: &str, shape: &[usize]) -> Result<TensorView> {
        let view = self.take(name)?;
        expect_shape(&view, shape)?;
        match view.info.encoding {
            Encoding::U8 => Ok(view),
            other => Err(Error::invalid(format!(
                "tensor `{}` has elements of type `{other}`, expected `U8`",
                view.info.name
            ))),
        }
    }

    /// The values of the tensor called `name`, of shape `shape`, all of them finite.
    pub fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let view = self.take(name)?;
        expect_shape(&view, shape)?;
        self.decoded(&view)
    }

    /// The elements of a small tensor, all of them finite.
    fn decoded(&self, view: &TensorView) -> Result<Vec<f32>> {
        let mut values = vec![0.0; view.info.num_elements()];
        if self.ctx.is_none() {
            return Ok(values);
        }
        let decoded = view
            .info
            .encoding
            .decode_row(view.bytes.as_slice(), &mut values);
        decoded.map_err(|e| e.context(format!("tensor `{}`", view.info.name)))?;
        match values.iter().position(|x| !x.is_finite()) {
            Some(at) => Err(not_finite(view, at)),
            None => Ok(values),
        }
    }

    /// Whether two matrices hold different bytes; not looked at when the model is only weighed.
    pub fn differ(&self, a: &RawMatrix, b: &RawMatrix) -> bool {
        self.ctx.is_some() && (a.encoding() != b.encoding() || a.bytes() != b.bytes())
    }

    /// The bias that belongs to a weight, where `bias` says that there is one.
    pub fn bias(
        &mut self,
        stem: &str,
        size: usize,
        bias: BiasPresence,
    ) -> Result<Option<Vec<f32>>> {
        self.find_vector(&format!("{stem}.bias"), size, bias)
    }

    /// The vector `[size]` called `name`, where `presence` says that it is there.
    pub fn find_vector(
        &mut self,
        name: &str,
        size: usize,
        presence: BiasPresence,
    ) -> Result<Option<Vec<f32>>> {
        match presence {
            BiasPresence::Required => self.vector(name, size).map(Some),
            BiasPresence::Optional if self.has(name) => self.vector(name, size).map(Some),
            // One that must not be there stays unused and is refused by name.
            BiasPresence::Optional | BiasPresence::Absent => Ok(None),
        }
    }

    /// What the model does not use would change its output in the reference; silence would be a lie.
    ///
    /// # Errors
    /// `Unsupported`, with a name.
    pub fn refuse_unused(&self) -> Result<()> {
        let unused = self.names.iter().filter(|(name, _)| self.has(name));
        let mut left: Vec<&String> = unused.map(|(_, in_file)| in_file).collect();
        left.sort();
        match left.first() {
            None => Ok(()),
            Some(first) => {
                let (count, owner) = (left.len(), &self.owner);
                let text = format!(
                    "the checkpoint has {count} tensors that a {owner} does not use, such as `{first}`"
                );
                Err(Error::unsupported(text))
            }
        }
    }

    fn take(&mut self, name: &str) -> Result<TensorView> {
        let in_file = self.names.get(name).filter(|_| self.has(name));
        let in_file = in_file.ok_or_else(|| {
            let owner = &self.owner;
            Error::invalid(format!(
                "the checkpoint has no tensor `{name}`, which a {owner} needs"
            ))
        })?;
        let view = self.source.find(in_file);
        self.used.insert(name.to_owned());
        Ok(view.expect("listed tensors can be found"))
    }

    /// The tensor called `name`, of shape `shape`, all of its floats finite.
    fn checked(&mut self, name: &str, shape: &[usize]) -> Result<TensorView> {
        let view = self.take(name)?;
        expect_shape(&view, shape)?;
        self.check(&view)?;
        Ok(view)
    }

    fn check(&self, view: &TensorView) -> Result<()> {
        self.ctx.map_or(Ok(()), |ctx| check_finite(ctx, view))
    }
}

/// Matrices `[rows, cols]`, one behind the other in one tensor.
pub(super) struct Stacked {
    view: TensorView,
    count: usize,
    rows: usize,
    cols: usize,
}

impl Stacked {
    /// How many.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Rows and columns of each.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// How the elements are stored.
    pub fn encoding(&self) -> Encoding {
        self.view.info.encoding
    }

    /// Rows `rows` of matrix `index`; nothing is copied.
    pub fn rows(&self, index: usize, rows: Range<usize>) -> Result<RawMatrix> {
        let first = index * self.rows;
        rows_of_view(&self.view, self.cols, first + rows.start..first + rows.end)
    }

    /// Matrix `index`; nothing is copied.
    pub fn matrix(&self, index: usize) -> Result<RawMatrix> {
        self.rows(index, 0..self.rows)
    }
}

/// Rows of the innermost dimension, of `cols` elements each, as a matrix over the same bytes.
fn rows_of_view(view: &TensorView, cols: usize, rows: Range<usize>) -> Result<RawMatrix> {
    let (info, count) = (&view.info, rows.len());
    let matrix = info
        .encoding
        .row_bytes(cols)
        .ok_or_else(|| {
            Error::invalid(format!(
                "a row of {cols} elements is no whole number of `{}` blocks",
                info.encoding.name()
            ))
        })
        .and_then(|row| view.bytes.part(rows.start * row, count * row))
        .and_then(|bytes| RawMatrix::new(count, cols, info.encoding, Arc::new(bytes)));
    matrix.map_err(|e| e.context(format!("tensor `{}`", info.name)))
}

/// Refuses NaN and infinity in a tensor whose elements can be that by themselves.
fn check_finite(ctx: &Context, view: &TensorView) -> Result<()> {
    const PART: usize = 1 << 20;
    let (encoding, bytes) = (view.info.encoding, view.bytes.as_slice());
    if !encoding.can_be_non_finite() {
        return Ok(());
    }
    // A whole number of blocks.
    let per_part = (PART / encoding.block_bytes()).max(1) * encoding.block_bytes();
    let first = std::sync::Mutex::new(None::<usize>);
    ctx.pool().run(bytes.len().div_ceil(per_part), |part| {
        let begin = part * per_part;
        let end = bytes.len().min(begin + per_part);
        if let Some(at) = encoding.find_non_finite(&bytes[begin..end]) {
            let at = at + begin / encoding.block_bytes() * encoding.block_len();
            let mut first = first
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            *first = Some(first.map_or(at, |other| other.min(at)));
        }
    });
    match first
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
    {
        Some(at) => Err(not_finite(view, at)),
        None => Ok(()),
    }
}

fn not_finite(view: &TensorView, at: usize) -> Error {
    let (encoding, bytes) = (view.info.encoding, view.bytes.as_slice());
    let size = encoding.row_bytes(1).unwrap_or(0);
    let mut value = [f32::NAN];
    // Packed encodings have no single elements; their value is not shown then.
    let element = bytes.get(at * size..(at + 1) * size).filter(|_| size > 0);
    let decoded = element.map(|element| encoding.decode_row(element, &mut value));
    let found = match decoded {
        Some(Ok(())) => value[0].to_string(),
        _ => "no finite number".to_owned(),
    };
    let name = &view.info.name;
    Error::invalid(format!("tensor `{name}` holds {found} at element {at}")).with_hint(
        "the file is damaged or was made by a training run that diverged; download it again",
    )
}

fn expect_shape(view: &TensorView, expected: &[usize]) -> Result<()> {
    if view.info.shape == expected {
        return Ok(());
    }
    let (name, found) = (&view.info.name, &view.info.shape);
    Err(Error::invalid(format!(
        "tensor `{name}` has shape {found:?}, expected {expected:?}"
    )))
}
