//! A writer of small GGUF files for tests, which can also lie.

/// Number of a value type in the file.
pub(crate) mod kind {
    pub(crate) const U8: u32 = 0;
    pub(crate) const I16: u32 = 3;
    pub(crate) const U32: u32 = 4;
    pub(crate) const I32: u32 = 5;
    pub(crate) const F32: u32 = 6;
    pub(crate) const BOOL: u32 = 7;
    pub(crate) const STRING: u32 = 8;
    pub(crate) const ARRAY: u32 = 9;
    pub(crate) const U64: u32 = 10;
    pub(crate) const I64: u32 = 11;
    pub(crate) const F64: u32 = 12;
}

/// What one tensor entry says; `data` may disagree with it.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: Vec<u8>,
    pub(crate) dims: Vec<u64>,
    pub(crate) ggml_type: u32,
    /// `None`: where the writer puts the data.
    pub(crate) offset: Option<u64>,
    pub(crate) data: Vec<u8>,
}

/// The parts of a file, each of which a test may set to nonsense before [`Sample::bytes`] puts them together.
#[derive(Clone)]
pub(crate) struct Sample {
    pub(crate) version: u32,
    /// Key, type number, encoded value.
    pub(crate) entries: Vec<(Vec<u8>, u32, Vec<u8>)>,
    pub(crate) tensors: Vec<Tensor>,
    /// What the header claims, when not the truth.
    pub(crate) num_entries: Option<u64>,
    pub(crate) num_tensors: Option<u64>,
    pub(crate) alignment: usize,
}

/// Length and bytes.
pub(crate) fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// Element type, count and elements.
pub(crate) fn array(element: u32, elements: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = element.to_le_bytes().to_vec();
    bytes.extend((elements.len() as u64).to_le_bytes());
    bytes.extend(elements.concat());
    bytes
}

impl Sample {
    /// Two tensors and a few entries of every kind.
    pub(crate) fn new() -> Self {
        let sample = Self {
            version: 3,
            entries: Vec::new(),
            tensors: Vec::new(),
            num_entries: None,
            num_tensors: None,
            alignment: 32,
        };
        let tokens = array(
            kind::STRING,
            &[string("<s>"), string(b"\xff\xfe"), string("")],
        );
        sample
            .entry("general.architecture", kind::STRING, string("llama"))
            .entry("llama.block_count", kind::U32, 2u32.to_le_bytes())
            .entry("llama.rope.freq_base", kind::F32, 1e4f32.to_le_bytes())
            .entry("tokenizer.ggml.tokens", kind::ARRAY, tokens)
            .tensor("a.weight", &[3, 2], 0, (0..24).collect())
            .tensor("b.weight", &[32, 1, 2], 8, (0..68).collect())
    }

    pub(crate) fn entry(mut self, key: &str, kind: u32, value: impl AsRef<[u8]>) -> Self {
        self.entries
            .push((key.into(), kind, value.as_ref().to_vec()));
        self
    }

    pub(crate) fn tensor(
        mut self,
        name: &str,
        dims: &[u64],
        ggml_type: u32,
        data: Vec<u8>,
    ) -> Self {
        self.tensors.push(Tensor {
            name: name.into(),
            dims: dims.to_vec(),
            ggml_type,
            offset: None,
            data,
        });
        self
    }

    /// Changes one tensor.
    pub(crate) fn with_tensor(mut self, at: usize, change: impl FnOnce(&mut Tensor)) -> Self {
        change(&mut self.tensors[at]);
        self
    }

    /// The header alone, without padding.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(
            self.num_tensors
                .unwrap_or(self.tensors.len() as u64)
                .to_le_bytes(),
        );
        out.extend(
            self.num_entries
                .unwrap_or(self.entries.len() as u64)
                .to_le_bytes(),
        );
        for (key, kind, value) in &self.entries {
            out.extend(string(key));
            out.extend(kind.to_le_bytes());
            out.extend(value);
        }
        let mut end = 0;
        for tensor in &self.tensors {
            out.extend(string(&tensor.name));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor
                .dims
                .iter()
                .for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.ggml_type.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(end as u64).to_le_bytes());
            end = (end + tensor.data.len()).next_multiple_of(self.alignment);
        }
        out
    }

    /// The file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.data);
        }
        out
    }
}
