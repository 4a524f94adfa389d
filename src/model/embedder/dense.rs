//! A `Dense` module: a linear layer with an activation, behind the pooling.

use std::path::Path;

use serde_json::Value;

use super::recipe::read_json;
use crate::error::{Error, Result};
use crate::formats;
use crate::model::checkpoint::Checkpoint;
use crate::model::config::BiasPresence;
use crate::model::fields::Fields;
use crate::nn::{Input, Linear, WeightPath};
use crate::ops::activate::{Function, activate};
use crate::ops::{Context, Tensor};

/// The module with its weights.
#[derive(Debug)]
pub(super) struct Dense {
    linear: Linear,
    activation: Option<Function>,
}

/// What its `config.json` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DenseConfig {
    pub in_features: usize,
    pub out_features: usize,
    has_bias: bool,
    activation: Option<Function>,
}

impl DenseConfig {
    /// The configuration in `folder`.
    ///
    /// # Errors
    /// `NotFound` without one, `Invalid` for what it should not be, `Unsupported` for what this program does not compute.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let json = read_json(&path)?
            .ok_or_else(|| Error::not_found(format!("`{}` is missing", path.display())))?;
        Self::of(&json).map_err(|error| error.context(format!("in `{}`", path.display())))
    }

    fn of(json: &Value) -> Result<Self> {
        const MOST: u64 = 1 << 24;
        let size = |key: &str| match json.get(key).and_then(Value::as_u64) {
            Some(size @ 1..=MOST) => Ok(size as usize),
            _ => Err(Error::invalid(format!(
                "`{key}` must be a whole number from 1 to {MOST}"
            ))),
        };
        let given = |key: &str| json.get(key).filter(|value| !value.is_null());
        for key in ["module_input_name", "module_output_name"] {
            if let Some(name) = given(key)
                && name != "sentence_embedding"
            {
                return Err(Error::unsupported(format!(
                    "`{key}` {name} is not supported"
                )));
            }
        }
        let flag = |key: &str| Fields::of(json).flag(key);
        if flag("use_residual")? == Some(true) {
            return Err(Error::unsupported("`use_residual` is not supported"));
        }
        Ok(Self {
            in_features: size("in_features")?,
            out_features: size("out_features")?,
            has_bias: flag("bias")?.unwrap_or(true),
            activation: activation(given("activation_function"))?,
        })
    }
}

/// By the name of a class of torch; without a name it is tanh.
fn activation(value: Option<&Value>) -> Result<Option<Function>> {
    let Some(value) = value else {
        return Ok(Some(Function::Tanh));
    };
    let name = value.as_str().unwrap_or_default();
    match name.rsplit('.').next().unwrap_or_default() {
        "Identity" => Ok(None),
        "Tanh" => Ok(Some(Function::Tanh)),
        "ReLU" => Ok(Some(Function::Relu)),
        "SiLU" => Ok(Some(Function::Silu)),
        "GELU" => Ok(Some(Function::Gelu)),
        _ => Err(
            Error::unsupported(format!("the activation {value} is not supported"))
                .with_hint("supported are torch's `Identity`, `Tanh`, `ReLU`, `SiLU` and `GELU`"),
        ),
    }
}

impl Dense {
    /// Loads the module in `folder`.
    ///
    /// # Errors
    /// Those of the files.
    pub fn load(ctx: &Context, folder: &Path, path: WeightPath) -> Result<Self> {
        let config = DenseConfig::read(folder)?;
        let weights = formats::open(folder).map_err(|error| {
            error.with_hint(
                "the weights of the module must be in `model.safetensors`; a `pytorch_model.bin` is not read: save the model \
                 with a newer version of sentence-transformers",
            )
        })?;
        let owner = "dense module".to_owned();
        let all = |name: &str| Some(name.to_owned());
        let mut file = Checkpoint::new(Some(ctx), &weights, owner, path, all)?;
        let (out, inn) = (config.out_features, config.in_features);
        let bias = match config.has_bias {
            true => BiasPresence::Required,
            false => BiasPresence::Absent,
        };
        let linear = file.linear("linear", out, inn, bias)?;
        file.refuse_unused()?;
        Ok(Self {
            linear,
            activation: config.activation,
        })
    }

    /// Bytes of weights.
    pub fn bytes(&self) -> usize {
        self.linear.bytes()
    }

    /// `[rows, out_features]`.
    ///
    /// # Errors
    /// Those of the multiplication.
    pub fn forward(&self, ctx: &Context, x: &Tensor) -> Result<Tensor> {
        let mut y = self.linear.forward(ctx, &Input::new(x))?;
        if let Some(function) = self.activation {
            activate(ctx, function, &mut y);
        }
        Ok(y)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_those_of_the_class_and_other_features_are_refused() {
        let read = |more: Value| {
            let mut config = json!({ "in_features": 8, "out_features": 4 });
            for (name, value) in more.as_object().unwrap() {
                config[name] = value.clone();
            }
            DenseConfig::of(&config).map_err(|error| error.to_string())
        };
        let plain = read(json!({})).unwrap();
        assert_eq!(
            (plain.has_bias, plain.activation),
            (true, Some(Function::Tanh))
        );
        let identity =
            json!({ "activation_function": "torch.nn.modules.linear.Identity", "bias": false });
        let identity = read(identity).unwrap();
        assert_eq!((identity.has_bias, identity.activation), (false, None));
        for (more, words) in [
            (json!({ "activation_function": "torch.nn.Mish" }), "Mish"),
            (json!({ "use_residual": true }), "`use_residual`"),
            (
                json!({ "module_input_name": "token_embeddings" }),
                "token_embeddings",
            ),
            (json!({ "in_features": 0 }), "`in_features`"),
            (json!({ "out_features": "4" }), "`out_features`"),
        ] {
            let message = read(more).unwrap_err();
            assert!(message.contains(words), "{message}");
        }
    }
}
