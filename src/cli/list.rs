//! `oxydllm list`.

use std::path::Path;
use std::process::ExitCode;

use super::Printer;
use super::args::ListArgs;
use crate::env;
use crate::error::Result;
use crate::model::is_supported;
use crate::store::{self, LocalModel};
use crate::units::format_size;

/// Prints the table of local models.
///
/// # Errors
/// `Io` when the models directory cannot be read.
pub fn execute(args: &ListArgs, printer: &Printer) -> Result<ExitCode> {
    let dir = args.models_dir.resolve()?;
    let models = store::scan(&dir)?;
    let shown = abbreviate(&dir, &env::home_dir());
    if models.is_empty() {
        let why = if dir.exists() {
            ""
        } else {
            " (it does not exist)"
        };
        printer.data(format_args!("No models found in {shown}{why}"))?;
        printer.talk("Download one with `oxydllm pull user/model`");
    } else {
        printer.data_piece(table(&models, &shown))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The documented layout: two spaces of indent, a rule as wide as the table, blank lines before, between and after.
fn table(models: &[LocalModel], dir: &str) -> String {
    let width = |title: &str, text: fn(&LocalModel) -> &str| {
        models
            .iter()
            .map(|model| text(model).chars().count())
            .max()
            .unwrap_or(0)
            .max(title.len())
    };
    let name_width = width("NAME", |model| &model.id);
    let arch_width = width("ARCHITECTURE", |model| &model.architecture);
    let row = |name: &str, architecture: &str, size: &str| {
        format!("  {name:name_width$} {architecture:arch_width$} {size:>9}")
    };
    let mut text = format!(
        "\n{}\n  {}\n",
        row("NAME", "ARCHITECTURE", "SIZE"),
        "─".repeat(name_width + arch_width + 11)
    );
    for model in models {
        let size = if model.size_bytes == 0 {
            "-".to_owned()
        } else {
            format_size(model.size_bytes)
        };
        text.push_str(&row(&model.id, &model.architecture, &size));
        if !model.missing.is_empty() {
            text.push_str("  (incomplete)");
        } else if !is_supported(&model.architecture) {
            text.push_str("  (not supported)");
        }
        text.push('\n');
    }
    text.push_str(&format!("\n  {} model(s) in {dir}\n\n", models.len()));
    text
}

/// `~` for the home directory.
pub(super) fn abbreviate(dir: &Path, home: &Path) -> String {
    match dir.strip_prefix(home) {
        Ok(rest) if home.parent().is_some() && rest.as_os_str().is_empty() => "~".to_owned(),
        Ok(rest) if home.parent().is_some() => format!("~/{}", rest.display()),
        _ => dir.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Weights;

    fn model(id: &str, architecture: &str, size_bytes: u64, missing: &[&str]) -> LocalModel {
        LocalModel {
            id: id.into(),
            folder_id: id.into(),
            dir: "/d".into(),
            weights: Weights::Safetensors(Vec::new()),
            architecture: architecture.into(),
            size_bytes,
            missing: missing.iter().map(|&name| name.into()).collect(),
        }
    }

    #[test]
    fn the_table_is_the_documented_one_byte_for_byte() {
        let models = [
            model(
                "mistralai/Ministral-3-3B-Instruct-2512",
                "Mistral3ForConditionalGeneration",
                4_672_000_000,
                &[],
            ),
            model("Qwen/Qwen3-4B-Q4_K_M", "qwen3 (GGUF)", 2_501_000_000, &[]),
            model("u/empty", "Unknown", 0, &["config.json"]),
            model("u/other", "MambaForCausalLM", 1 << 30, &[]),
        ];
        let rule = "─".repeat(81);
        let expected = format!(
            "\n  NAME                                   ARCHITECTURE                          SIZE\n  {rule}\n\
             \x20 mistralai/Ministral-3-3B-Instruct-2512 Mistral3ForConditionalGeneration   4.35 GB\n\
             \x20 Qwen/Qwen3-4B-Q4_K_M                   qwen3 (GGUF)                       2.33 GB\n\
             \x20 u/empty                                Unknown                                  -  (incomplete)\n\
             \x20 u/other                                MambaForCausalLM                   1.00 GB  (not supported)\n\
             \n  4 model(s) in ~/.oxydllm/models\n\n"
        );
        assert_eq!(table(&models, "~/.oxydllm/models"), expected);
    }

    #[test]
    fn only_the_home_directory_itself_is_abbreviated() {
        let home = Path::new("/home/me");
        assert_eq!(
            abbreviate(Path::new("/home/me/.oxydllm/models"), home),
            "~/.oxydllm/models"
        );
        assert_eq!(abbreviate(Path::new("/home/me"), home), "~");
        assert_eq!(abbreviate(Path::new("/home/meow/x"), home), "/home/meow/x");
        assert_eq!(abbreviate(Path::new("/srv/x"), Path::new("/")), "/srv/x");
    }
}
