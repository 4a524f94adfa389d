//! Tensors of a file, taken one by one under their canonical names and checked on the way.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::LoadOptions;
use crate::error::{Error, Result};
use crate::formats::{TensorSource, TensorView, Weights};
use crate::model::config::{BiasPresence, ModelConfig, NormConfig, NormKind};
use crate::model::layers::Norm;
use crate::model::names::{Names, Part, Use};
use crate::nn::{ExpertStack, Linear, StackShape, WeightPath};
use crate::ops::Context;
use crate::ops::matmul::RawMatrix;
use crate::quant::Encoding;

/// The tensors of one file. Whatever nobody took is left at the end and refused.
pub(super) struct Tensors<'a> {
    /// `None`: nothing is read, the model is only weighed.
    ctx: Option<&'a Context>,
    weights: &'a Weights,
    options: LoadOptions,
    architecture: &'static str,
    names: Names,
    /// Names in the file by canonical name.
    unused: HashMap<String, String>,
    /// How many tensors each skipped part has.
    skipped: BTreeMap<&'static str, usize>,
}

impl<'a> Tensors<'a> {
    pub fn new(
        ctx: Option<&'a Context>,
        weights: &'a Weights,
        config: &ModelConfig,
        options: LoadOptions,
    ) -> Result<Self> {
        let names = Names::of(weights, config);
        let mut unused = HashMap::new();
        let mut skipped = BTreeMap::new();
        for tensor in weights.tensors() {
            let name = &tensor.name;
            match names.use_of(name) {
                Use::Config => {}
                Use::Skipped(part) => *skipped.entry(part).or_default() += 1,
                Use::Weight(canonical) => {
                    if let Some(other) = unused.insert(canonical, name.clone()) {
                        let text =
                            format!("`{name}` and `{other}` are the same tensor of the model");
                        return Err(Error::invalid(text));
                    }
                }
            }
        }
        Ok(Self {
            ctx,
            weights,
            options,
            architecture: config.architecture,
            names,
            unused,
            skipped,
        })
    }

    /// Names the parts that are not loaded.
    pub fn log_skipped(&self) {
        for (part, tensors) in &self.skipped {
            tracing::info!(part, tensors, "skipped: not part of the language model");
        }
    }

    /// The canonical name of a part's weight.
    pub fn weight_name(&self, layer: Option<usize>, part: Part) -> String {
        format!("{}.weight", self.names.stem(layer, part))
    }

    /// The canonical name of a part that is one tensor without a kind: `.weight` stands behind it in GGUF files only.
    pub fn bare_name(&self, layer: usize, part: Part) -> String {
        match self.weights {
            Weights::Gguf(_) => self.weight_name(Some(layer), part),
            Weights::Safetensors(_) => self.names.stem(Some(layer), part),
        }
    }

    /// The canonical name of a part of a layer, without `.weight` or `.bias`.
    pub fn stem(&self, layer: usize, part: Part) -> String {
        self.names.stem(Some(layer), part)
    }

    /// Whether the file is a GGUF file.
    pub fn is_gguf(&self) -> bool {
        matches!(self.weights, Weights::Gguf(_))
    }

    /// The canonical name of a tensor of all experts, if the file has it; `.weight` may stand behind it.
    pub fn stack_name(&self, layer: usize, part: Part) -> Option<String> {
        let stem = self.stem(layer, part);
        let names = [format!("{stem}.weight"), stem];
        names.into_iter().find(|name| self.has(name))
    }

    /// The canonical name of what is added to a router's scores: a bias in GGUF files.
    pub fn correction_name(&self, layer: usize) -> String {
        let stem = self.stem(layer, Part::RouterCorrection);
        if self.is_gguf() {
            format!("{stem}.bias")
        } else {
            stem
        }
    }

    /// Whether the file has a tensor that nobody took yet, by canonical name.
    pub fn has(&self, name: &str) -> bool {
        self.unused.contains_key(name)
    }

    /// [`Self::linear`], multiplied in floats whatever its encoding.
    pub fn exact_linear(
        &mut self,
        layer: usize,
        part: Part,
        out: usize,
        inn: usize,
        bias: BiasPresence,
    ) -> Result<Linear> {
        let stem = self.stem(layer, part);
        let matrix = self.matrix(&format!("{stem}.weight"), out, inn)?;
        let bias = self.bias(&stem, out, bias)?;
        self.build_for(&matrix, bias, WeightPath::Reference)
    }

    /// The same with one output, which GGUF files store as a vector.
    pub fn exact_row(&mut self, layer: usize, part: Part, inn: usize) -> Result<Linear> {
        let view = self.take(&self.weight_name(Some(layer), part))?;
        if view.info.shape != [inn] {
            expect_shape(&view, &[1, inn])?;
        }
        self.check(&view)?;
        let matrix = rows_of_view(&view, inn, 0..1)?;
        self.build_for(&matrix, None, WeightPath::Reference)
    }

    /// A linear layer of layer `layer`: `[out, inn]` and perhaps a bias `[out]`.
    pub fn linear(
        &mut self,
        layer: usize,
        part: Part,
        out: usize,
        inn: usize,
        bias: BiasPresence,
    ) -> Result<Linear> {
        let stem = self.names.stem(Some(layer), part);
        let name = format!("{stem}.weight");
        let matrix = self.matrix(&name, out, inn)?;
        let bias = self.bias(&stem, out, bias)?;
        let linear = self.build(&matrix, bias);
        linear.map_err(|e| e.context(format!("tensor `{name}`")))
    }

    /// Linear layers over one input that files have by themselves, as `parts` (with their output features), or fused into
    /// `whole`, whose rows they are one after the other.
    pub fn rows_of<const N: usize>(
        &mut self,
        layer: usize,
        whole: Part,
        parts: [(Part, usize); N],
        inn: usize,
        bias: BiasPresence,
    ) -> Result<[Linear; N]> {
        let name = self.weight_name(Some(layer), whole);
        // In some files the fused tensor has the name of its last part.
        if self.has(&name) && !self.has(&self.weight_name(Some(layer), parts[0].0)) {
            return self.split(layer, whole, parts.map(|(_, rows)| rows), inn, bias);
        }
        let mut layers = Vec::with_capacity(N);
        for (part, rows) in parts {
            layers.push(self.linear(layer, part, rows, inn, bias)?);
        }
        Ok(layers.try_into().expect("one layer per part"))
    }

    /// Linear layers over one input that files have as one, `whole`: their output features are its rows, one layer after the
    /// other.
    pub fn split<const N: usize>(
        &mut self,
        layer: usize,
        whole: Part,
        features: [usize; N],
        inn: usize,
        bias: BiasPresence,
    ) -> Result<[Linear; N]> {
        let stem = self.stem(layer, whole);
        let name = format!("{stem}.weight");
        let all = features.iter().sum();
        let view = self.checked(&name, &[all, inn])?;
        let bias = self.bias(&stem, all, bias)?;
        let mut first = 0;
        let mut layers = Vec::with_capacity(N);
        for rows in features {
            let range = first..first + rows;
            let matrix = rows_of_view(&view, inn, range.clone())?;
            let bias = bias.as_ref().map(|bias| bias[range].to_vec());
            let linear = self.build(&matrix, bias);
            layers.push(linear.map_err(|e| e.context(format!("tensor `{name}`")))?);
            first += rows;
        }
        Ok(layers.try_into().expect("one layer per part"))
    }

    /// Weights of a depthwise convolution: `[channels, kernel]`, as `[channels, 1, kernel]` in safetensors files.
    pub fn conv(
        &mut self,
        layer: usize,
        part: Part,
        channels: usize,
        kernel: usize,
    ) -> Result<Vec<f32>> {
        let view = self.take(&self.weight_name(Some(layer), part))?;
        if view.info.shape != [channels, 1, kernel] {
            expect_shape(&view, &[channels, kernel])?;
        }
        self.decoded(&view)
    }

    /// A norm over `size` elements, its offset added.
    pub fn norm(
        &mut self,
        layer: Option<usize>,
        part: Part,
        size: usize,
        config: &NormConfig,
    ) -> Result<Norm> {
        let stem = self.names.stem(layer, part);
        let mut weight = self.vector(&format!("{stem}.weight"), size)?;
        // In F32, as the reference does: adding 1 in half precision would lose the low bits.
        weight.iter_mut().for_each(|w| *w += config.offset);
        let bias = match config.kind {
            NormKind::Layer { bias: true } => Some(self.vector(&format!("{stem}.bias"), size)?),
            NormKind::Layer { bias: false } | NormKind::Rms => None,
        };
        Ok(Norm::new(config, weight, bias))
    }

    /// A layer over `matrix`, interleaved for the integer kernels where they take it.
    pub fn build(&self, matrix: &RawMatrix, bias: Option<Vec<f32>>) -> Result<Linear> {
        self.build_for(matrix, bias, self.options.path)
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
            return ExpertStack::new(ctx, matrices, bias, self.options.path);
        }
        let first = &matrices[0];
        let shape = StackShape {
            encoding: first.encoding(),
            count: matrices.len(),
            rows: first.rows(),
            cols: first.cols(),
        };
        Ok(ExpertStack::weighed(shape, bias, self.options.path))
    }

    /// [`Self::experts`] of matrices that `make` makes of what the file holds, one by one.
    pub fn converted_experts(
        &self,
        shape: StackShape,
        make: &(dyn Fn(usize) -> Result<RawMatrix> + Sync),
        bias: Option<Vec<f32>>,
    ) -> Result<ExpertStack> {
        match self.ctx {
            Some(ctx) => ExpertStack::made(ctx, shape, make, bias, self.options.path),
            None => Ok(ExpertStack::weighed(shape, bias, self.options.path)),
        }
    }

    /// The matrix `[rows, cols]` called `name`.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<RawMatrix> {
        let view = self.checked(name, &[rows, cols])?;
        rows_of_view(&view, cols, 0..rows)
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

    /// What the model does not use would change its output in the reference; silence would be a lie.
    pub fn refuse_unused(&self) -> Result<()> {
        let mut left: Vec<&String> = self.unused.values().collect();
        left.sort();
        match left.first() {
            None => Ok(()),
            Some(first) => {
                let (count, name) = (left.len(), self.architecture);
                let text = format!(
                    "the checkpoint has {count} tensors that a {name} model does not use, such as `{first}`"
                );
                Err(Error::unsupported(text))
            }
        }
    }

    /// The bias that belongs to a weight, where `bias` says that there is one.
    pub fn bias(
        &mut self,
        stem: &str,
        size: usize,
        bias: BiasPresence,
    ) -> Result<Option<Vec<f32>>> {
        let name = format!("{stem}.bias");
        match bias {
            BiasPresence::Required => self.vector(&name, size).map(Some),
            BiasPresence::Optional if self.has(&name) => self.vector(&name, size).map(Some),
            // A bias that must not be there stays unused and is refused by name.
            BiasPresence::Optional | BiasPresence::Absent => Ok(None),
        }
    }

    fn take(&mut self, name: &str) -> Result<TensorView> {
        let in_file = self.unused.remove(name).ok_or_else(|| {
            Error::invalid(format!(
                "the checkpoint has no tensor `{name}`, which a {} model needs",
                self.architecture
            ))
        })?;
        Ok(self
            .weights
            .find(&in_file)
            .expect("listed tensors can be found"))
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
