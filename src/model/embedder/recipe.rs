//! [`Recipe`]: how a vector is made of a text's features, as sentence-transformers' files say.
//!
//! `modules.json` lists modules in order; each has a folder with a `config.json`. Names of classes are compared by their last
//! part, because versions differ in where they keep a class.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};
use crate::model::fields::Fields;

/// How the features of the tokens become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolingMode {
    /// The first token's.
    Cls,
    /// The largest of each.
    Max,
    /// Their mean.
    Mean,
    /// Their sum, divided by the root of their number.
    MeanSqrtLength,
    /// Their mean with weights 1, 2, 3, …
    WeightedMean,
    /// The last token's.
    LastToken,
}

/// The flag of each mode in older files, its name in newer ones; vectors of several modes are joined in this order.
const MODES: [(&str, &str, PoolingMode); 6] = [
    ("pooling_mode_cls_token", "cls", PoolingMode::Cls),
    ("pooling_mode_max_tokens", "max", PoolingMode::Max),
    ("pooling_mode_mean_tokens", "mean", PoolingMode::Mean),
    (
        "pooling_mode_mean_sqrt_len_tokens",
        "mean_sqrt_len_tokens",
        PoolingMode::MeanSqrtLength,
    ),
    (
        "pooling_mode_weightedmean_tokens",
        "weightedmean",
        PoolingMode::WeightedMean,
    ),
    (
        "pooling_mode_lasttoken",
        "lasttoken",
        PoolingMode::LastToken,
    ),
];

/// The pooling of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pooling {
    /// One or several, whose vectors are joined.
    pub modes: Vec<PoolingMode>,
    /// Whether the tokens of a prompt go into the vector.
    pub include_prompt: bool,
}

/// What follows the pooling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// A linear layer with an activation; its files are in this folder.
    Dense(PathBuf),
    /// To length one.
    Normalize,
}

/// How a vector is made of the features of a text's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// Features to a vector.
    pub pooling: Pooling,
    /// What follows, in order.
    pub(super) steps: Vec<Step>,
}

impl Recipe {
    /// The recipe in `folder`. Without a `modules.json` it is `1_Pooling` if there is one, else the first token's features, and
    /// unit length.
    ///
    /// # Errors
    /// `Invalid` for files that are not what they should be, `Unsupported` for modules that this program does not have.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("modules.json");
        let Some(json) = read_json(&path)? else {
            let config = read_json(&folder.join("1_Pooling/config.json"))?;
            let pooling = config.map_or_else(
                || {
                    Ok(Pooling {
                        modes: vec![PoolingMode::Cls],
                        include_prompt: true,
                    })
                },
                |config| Pooling::of(&config, Path::new("1_Pooling")),
            )?;
            return Ok(Self {
                pooling,
                steps: vec![Step::Normalize],
            });
        };
        let modules = Module::list(&json);
        let recipe = modules.and_then(|modules| Self::of(&modules, folder));
        recipe.map_err(|error| error.context(format!("in `{}`", path.display())))
    }

    fn of(modules: &[Module], folder: &Path) -> Result<Self> {
        let mut modules = modules.iter();
        match modules.next() {
            Some(first) if first.kind == "Transformer" && first.path.as_os_str().is_empty() => {}
            Some(first) if first.kind == "Transformer" => {
                let path = first.path.display();
                return Err(Error::unsupported(format!(
                    "the transformer lies in the folder `{path}`, expected it beside `modules.json`"
                )));
            }
            first => return Err(wrong_module(first, "Transformer")),
        }
        let pooling = match modules.next() {
            Some(second) if second.kind == "Pooling" => {
                let config = second.config(folder)?;
                Pooling::of(&config, &second.path)?
            }
            second => return Err(wrong_module(second, "Pooling")),
        };
        let mut steps = Vec::new();
        for module in modules {
            match module.kind.as_str() {
                "Dense" => steps.push(Step::Dense(folder.join(&module.path))),
                "Normalize" => steps.push(Step::Normalize),
                // Only does something in training.
                "Dropout" => {}
                _ => return Err(wrong_module(Some(module), "Dense or Normalize")),
            }
        }
        Ok(Self { pooling, steps })
    }
}

fn wrong_module(found: Option<&Module>, expected: &str) -> Error {
    match found {
        None => Error::invalid(format!("a module is missing, expected {expected}")),
        Some(module) => Error::unsupported(format!(
            "the module `{}` is not supported here, expected {expected}",
            module.kind
        )),
    }
}

/// An entry of `modules.json`.
struct Module {
    /// The last part of the class's name.
    kind: String,
    /// The folder below the model's.
    path: PathBuf,
}

impl Module {
    fn list(json: &Value) -> Result<Vec<Self>> {
        let Some(entries) = json.as_array() else {
            return Err(Error::invalid("expected a list of modules"));
        };
        entries.iter().map(Self::of).collect()
    }

    fn of(entry: &Value) -> Result<Self> {
        let text = |key: &str| {
            let value = entry.get(key).and_then(Value::as_str);
            value.ok_or_else(|| Error::invalid(format!("a module has no `{key}`: {entry}")))
        };
        let (kind, path) = (text("type")?, Path::new(text("path")?));
        // Paths come from a stranger.
        if path
            .components()
            .any(|part| !matches!(part, std::path::Component::Normal(_)))
        {
            return Err(Error::invalid(format!(
                "the path `{}` of a module leaves the model's folder",
                path.display()
            )));
        }
        Ok(Self {
            kind: kind.rsplit('.').next().unwrap_or(kind).to_owned(),
            path: path.to_owned(),
        })
    }

    fn config(&self, folder: &Path) -> Result<Value> {
        let path = folder.join(&self.path).join("config.json");
        read_json(&path)?.ok_or_else(|| {
            Error::not_found(format!("`{}` is missing", path.display())).with_hint(
                "pull the model again, or copy the folders that `modules.json` names from the original model",
            )
        })
    }
}

impl Pooling {
    fn of(config: &Value, path: &Path) -> Result<Self> {
        let in_file =
            |error: Error| error.context(format!("`{}`", path.join("config.json").display()));
        let fields = Fields::of(config);
        let modes = match fields.get("pooling_mode") {
            Some(named) => named_modes(named).map_err(in_file)?,
            None => {
                let mut set = Vec::new();
                for (flag, _, mode) in &MODES {
                    if fields.flag(flag).map_err(in_file)? == Some(true) {
                        set.push(*mode);
                    }
                }
                set
            }
        };
        if modes.is_empty() {
            return Err(in_file(Error::invalid("no pooling mode is set")));
        }
        let include_prompt = fields.flag("include_prompt").map_err(in_file)?;
        Ok(Self {
            modes,
            include_prompt: include_prompt.unwrap_or(true),
        })
    }
}

/// Newer files name one mode or list several, whose order counts.
fn named_modes(value: &Value) -> Result<Vec<PoolingMode>> {
    let find = |value: &Value| {
        let found = MODES.iter().find(|(_, name, _)| value == name);
        found
            .map(|(.., mode)| *mode)
            .ok_or_else(|| Error::unsupported(format!("the pooling mode {value} is not supported")))
    };
    match value {
        Value::Array(all) => all.iter().map(find).collect(),
        one => Ok(vec![find(one)?]),
    }
}

/// A JSON file, or `None` when there is none.
pub(super) fn read_json(path: &Path) -> Result<Option<Value>> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            Error::invalid(format!("`{}` is not JSON", path.display())).with_source(error)
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn read(files: &[(&str, &str)]) -> Result<Recipe> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let mut recipe = Recipe::read(folder.path())?;
        for step in &mut recipe.steps {
            if let Step::Dense(path) = step {
                *path = path.strip_prefix(folder.path()).unwrap().to_owned();
            }
        }
        Ok(recipe)
    }

    const TRANSFORMER: &str = r#"{"type": "sentence_transformers.models.Transformer", "path": ""}"#;
    const POOLING: &str =
        r#"{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}"#;
    const MEAN: (&str, &str) = (
        "1_Pooling/config.json",
        r#"{"pooling_mode_mean_tokens": true}"#,
    );

    #[test]
    fn modules_are_read_in_order_whatever_package_their_classes_are_in() {
        let modules = format!(
            r#"[{TRANSFORMER}, {POOLING}, {{"type": "sentence_transformers.base.modules.dense.Dense", "path": "2_Dense"}},
                {{"type": "x.Dropout", "path": "3_Dropout"}}, {{"type": "x.Normalize", "path": "4_Normalize"}}]"#
        );
        let recipe = read(&[("modules.json", &modules), MEAN]).unwrap();
        assert_eq!(recipe.pooling.modes, [PoolingMode::Mean]);
        assert!(recipe.pooling.include_prompt);
        assert_eq!(
            recipe.steps,
            [Step::Dense("2_Dense".into()), Step::Normalize]
        );
        let without = read(&[
            ("modules.json", &format!("[{TRANSFORMER}, {POOLING}]")),
            MEAN,
        ]);
        assert_eq!(without.unwrap().steps, [], "no module, no unit length");
    }

    #[test]
    fn without_modules_the_first_token_counts_unless_a_pooling_file_says_otherwise() {
        let bare = read(&[]).unwrap();
        assert_eq!(bare.pooling.modes, [PoolingMode::Cls]);
        assert_eq!(bare.steps, [Step::Normalize]);
        assert_eq!(read(&[MEAN]).unwrap().pooling.modes, [PoolingMode::Mean]);
    }

    #[test]
    fn several_modes_are_joined_in_the_order_that_the_file_says() {
        let pooling = |text: &str| read(&[("1_Pooling/config.json", text)]).map(|r| r.pooling);
        let flags = r#"{"pooling_mode_mean_tokens":true,"pooling_mode_cls_token" : true, "include_prompt": false}"#;
        let flags = pooling(flags).unwrap();
        assert_eq!(flags.modes, [PoolingMode::Cls, PoolingMode::Mean]);
        assert!(!flags.include_prompt);
        let named = pooling(r#"{"pooling_mode": ["mean", "cls"]}"#).unwrap();
        assert_eq!(named.modes, [PoolingMode::Mean, PoolingMode::Cls]);
        let one = pooling(r#"{"pooling_mode": "lasttoken"}"#).unwrap();
        assert_eq!(one.modes, [PoolingMode::LastToken]);
        let unknown = pooling(r#"{"pooling_mode": "median"}"#).unwrap_err();
        assert!(unknown.to_string().contains("\"median\""), "{unknown}");
        let typed = pooling(r#"{"pooling_mode_mean_tokens": "true"}"#).unwrap_err();
        let expected = "`pooling_mode_mean_tokens` is \"true\", expected `true` or `false`";
        assert!(typed.to_string().contains(expected), "{typed}");
        let none = pooling(r#"{"pooling_mode_mean_tokens": false}"#).unwrap_err();
        assert!(none.to_string().contains("no pooling mode"), "{none}");
    }

    #[test]
    fn what_is_not_supported_or_leaves_the_folder_is_refused() {
        let kind = |modules: &str| {
            let error = read(&[("modules.json", modules), MEAN]).unwrap_err();
            (error.kind(), error.to_string())
        };
        let (found, message) =
            kind(r#"[{"type": "sentence_transformers.models.StaticEmbedding", "path": ""}]"#);
        assert_eq!(found, ErrorKind::Unsupported);
        assert!(message.contains("`StaticEmbedding`"), "{message}");
        let cnn = format!(r#"[{TRANSFORMER}, {POOLING}, {{"type": "x.CNN", "path": "2_CNN"}}]"#);
        assert_eq!(kind(&cnn).0, ErrorKind::Unsupported);
        for path in ["../other", "/etc", "1_Pooling/../.."] {
            let modules = format!(r#"[{TRANSFORMER}, {{"type": "x.Pooling", "path": "{path}"}}]"#);
            let (found, message) = kind(&modules);
            assert_eq!(found, ErrorKind::Invalid);
            assert!(message.contains("leaves the model's folder"), "{message}");
        }
        let lost = format!(r#"[{TRANSFORMER}, {{"type": "x.Pooling", "path": "3_Pooling"}}]"#);
        assert_eq!(kind(&lost).0, ErrorKind::NotFound);
        assert_eq!(kind(&format!("[{TRANSFORMER}]")).0, ErrorKind::Invalid);
        assert_eq!(kind("{}").0, ErrorKind::Invalid);
    }
}
