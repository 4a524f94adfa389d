//! [`TemplateSources`]: where a model keeps its chat template.

use std::path::Path;

use serde_json::Value;

use super::ChatTemplate;
use crate::error::{Error, Result};
use crate::formats::gguf::Metadata;

/// A model's templates by name; the unnamed one is called `default`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateSources(Vec<(String, String)>);

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

impl TemplateSources {
    /// Adds a template unless one of this name is already known. One of blanks would render every chat to an empty prompt: it
    /// counts as absent.
    fn add(&mut self, name: &str, source: &str) {
        if !source.trim().is_empty() && self.find(name).is_none() {
            self.0.push((name.to_string(), source.to_string()));
        }
    }

    fn find(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, source)| source.as_str())
    }

    /// Adds the `chat_template` of a configuration file: a string, or a list of objects with `name` and `template`.
    fn add_config(&mut self, config: &Value) {
        match &config["chat_template"] {
            Value::String(source) => self.add(DEFAULT, source),
            Value::Array(entries) => {
                for entry in entries {
                    if let (Some(name), Some(source)) =
                        (entry["name"].as_str(), entry["template"].as_str())
                    {
                        self.add(name, source);
                    }
                }
            }
            _ => {}
        }
    }

    /// The templates of a checkpoint folder: `chat_template.jinja` and `additional_chat_templates/`, then
    /// `tokenizer_config.json`, `processor_config.json` and `chat_template.json`. The first to define a name counts.
    ///
    /// # Errors
    /// `Io` when a file cannot be read, `Invalid` when it is not JSON or not text.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let mut sources = Self::default();
        if let Some(source) = read_text(&folder.join("chat_template.jinja"))? {
            sources.add(DEFAULT, &source);
        }
        if let Some(source) = read_text(
            &folder
                .join("additional_chat_templates")
                .join("tool_use.jinja"),
        )? {
            sources.add(TOOL_USE, &source);
        }
        for name in [
            "tokenizer_config.json",
            "processor_config.json",
            "chat_template.json",
        ] {
            if let Some(config) = crate::text::tokenizer::read_json(&folder.join(name))? {
                sources.add_config(&config);
            }
        }
        Ok(sources)
    }

    /// The templates of a GGUF file: `tokenizer.chat_template` and, named, `tokenizer.chat_template.NAME`.
    ///
    /// # Errors
    /// `Invalid` when one is not text.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let mut sources = Self::default();
        if let Some(source) = metadata.find_str("tokenizer.chat_template")? {
            sources.add(DEFAULT, source);
        }
        if let Some(source) = metadata.find_str("tokenizer.chat_template.tool_use")? {
            sources.add(TOOL_USE, source);
        }
        Ok(sources)
    }

    /// Compiles them: the default, or the first if none is called so, and the one for tools if there is one. `None` when the
    /// model has no template.
    ///
    /// # Errors
    /// `Invalid` when one is no template.
    pub fn compile(&self) -> Result<Option<ChatTemplate>> {
        let Some(main) = self
            .find(DEFAULT)
            .or_else(|| self.0.first().map(|(_, source)| source.as_str()))
        else {
            return Ok(None);
        };
        ChatTemplate::with_tool_variant(main.to_string(), self.find(TOOL_USE).map(str::to_string))
            .map(Some)
    }
}

fn read_text(path: &Path) -> Result<Option<String>> {
    match std::fs::read(path) {
        Ok(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| Error::invalid(format!("`{}` is not UTF-8 text", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::formats::gguf::GgufFile;
    use crate::formats::gguf::sample::{Sample, kind, string};

    #[test]
    fn a_jinja_file_comes_before_the_configuration_and_a_list_has_a_tool_variant() {
        let folder = tempfile::tempdir().unwrap();
        let list = json!({"chat_template": [
            {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "old"}]});
        std::fs::write(
            folder.path().join("tokenizer_config.json"),
            list.to_string(),
        )
        .unwrap();
        let sources = TemplateSources::from_folder(folder.path()).unwrap();
        assert_eq!(
            (sources.find(DEFAULT), sources.find(TOOL_USE)),
            (Some("old"), Some("tools"))
        );
        std::fs::write(folder.path().join("chat_template.jinja"), "new").unwrap();
        let sources = TemplateSources::from_folder(folder.path()).unwrap();
        assert_eq!(
            (sources.find(DEFAULT), sources.find(TOOL_USE)),
            (Some("new"), Some("tools"))
        );
    }

    #[test]
    fn a_template_of_blanks_is_none_wherever_it_stands() {
        for blank in ["", " \n\t"] {
            let folder = tempfile::tempdir().unwrap();
            let write = |name: &str, text: &str| {
                std::fs::write(folder.path().join(name), text).unwrap();
            };
            let read = || TemplateSources::from_folder(folder.path()).unwrap();
            write("chat_template.jinja", blank);
            let config = json!({ "chat_template": blank }).to_string();
            write("tokenizer_config.json", &config);
            assert!(read().compile().unwrap().is_none());
            let list = [json!({"name": "default", "template": blank})];
            let config = json!({ "chat_template": list }).to_string();
            write("tokenizer_config.json", &config);
            assert!(read().compile().unwrap().is_none());
            // What is absent in one place may stand in the next.
            let config = json!({ "chat_template": "real" }).to_string();
            write("tokenizer_config.json", &config);
            assert_eq!(read().find(DEFAULT), Some("real"));

            let file = folder.path().join("m.gguf");
            let key = b"tokenizer.chat_template".to_vec();
            let sample = Sample {
                entries: vec![(key, kind::STRING, string(blank))],
                ..Sample::new()
            };
            std::fs::write(&file, sample.bytes()).unwrap();
            let opened = GgufFile::open(&file).unwrap();
            let sources = TemplateSources::from_metadata(opened.metadata()).unwrap();
            assert!(sources.compile().unwrap().is_none());
        }
    }

    #[test]
    fn no_template_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            TemplateSources::from_folder(folder.path())
                .unwrap()
                .compile()
                .unwrap()
                .is_none()
        );
    }
}
