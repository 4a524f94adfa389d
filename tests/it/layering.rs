//! The layers of `src/lib.rs`, and what is allowed where, enforced by reading the sources.

use std::fs;
use std::path::{Path, PathBuf};

/// Rows from top to bottom; modules of one row do not know each other. The bottom row is free to.
const ROWS: [&[&str]; 11] = [
    &["cli"],
    &["server", "service"],
    &["chat"],
    &["host", "hub"],
    &["engine", "store"],
    &["model", "text"],
    &["nn"],
    &["kv"],
    &["ops", "formats"],
    &["quant"],
    &[
        "error",
        "env",
        "units",
        "net",
        "device",
        "cgroup",
        "memory",
        "threads",
        "telemetry",
    ],
];

fn row_of(module: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.contains(&module))
}

/// A line of code with its number.
type Line<'a> = (usize, &'a str);

/// The lines of a source without comments, and without its test modules when `skip_tests`.
fn code_lines(source: &str, skip_tests: bool) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    let mut pending = false;
    let mut inside_tests = false;
    for (at, line) in source.lines().enumerate() {
        if inside_tests {
            inside_tests = line != "}";
            continue;
        }
        if skip_tests && line.starts_with("#[cfg(") && line.contains("test") {
            pending = true;
            continue;
        }
        if pending && line.starts_with("mod ") {
            pending = false;
            inside_tests = line.ends_with('{');
            continue;
        }
        pending = pending && line.starts_with('#');
        let code = line.split("//").next().unwrap_or_default();
        if !code.trim().is_empty() {
            lines.push((at + 1, code));
        }
    }
    lines
}

/// Paths below the crate that a source names as `crate::module` or inside `use crate::{...}`.
fn used_paths(source: &str) -> Vec<(usize, String)> {
    let mut used = Vec::new();
    let lines = code_lines(source, true);
    for (index, &(number, line)) in lines.iter().enumerate() {
        for (at, _) in line.match_indices("crate::") {
            let is_path_start =
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            let rest = &line[at + "crate::".len()..];
            if !is_path_start {
                continue;
            }
            if let Some(first) = rest.strip_prefix('{') {
                let tail = lines[index + 1..].iter().map(|(_, line)| *line);
                let group: String = std::iter::once(first)
                    .chain(tail)
                    .collect::<Vec<_>>()
                    .join(" ");
                used.extend(
                    group_members(&group)
                        .into_iter()
                        .map(|module| (number, module)),
                );
            } else {
                used.push((number, path(rest)));
            }
        }
    }
    used.retain(|(_, path)| !path.is_empty());
    used
}

/// The paths in `a::b, c::{d, e}, f};`, up to the closing brace.
fn group_members(group: &str) -> Vec<String> {
    let (mut depth, mut members, mut start) = (0, Vec::new(), 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                members.push(path(group[start..at].trim()));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                members.push(path(group[start..at].trim()));
                start = at + 1;
            }
            _ => {}
        }
    }
    members
}

fn path(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_alphanumeric() || matches!(c, '_' | ':'))
        .collect()
}

/// What `path` (below `src`) does that its place forbids.
fn violations(path: &str, source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let module = path.split(['/', '.']).next().unwrap_or_default();
    if !matches!(path, "lib.rs" | "main.rs") {
        match row_of(module) {
            None => found.push(format!("{path}: module `{module}` has no row")),
            Some(row) => found.extend(layer_violations(path, module, row, source)),
        }
    }
    for (number, line) in code_lines(source, true) {
        let mut refuse =
            |what: &str| found.push(format!("{path}:{number}: {what}: {}", line.trim()));
        if names_gpu_backend(line) && !matches!(module, "ops" | "device") {
            refuse("GPU features and libraries belong to `ops` and `device`");
        }
        if ["env::var(", "env::var_os(", "env::vars(", "env::vars_os("]
            .iter()
            .any(|call| line.contains(call))
            && path != "env.rs"
        {
            refuse("environment variables are read in `env.rs`");
        }
        if line.contains("unsafe") && has_word(line, "unsafe") && !may_be_unsafe(path) {
            refuse("`unsafe` is not allowed here");
        }
        let prints = [
            "print!",
            "println!",
            "eprint!",
            "eprintln!",
            "io::stdout()",
            "io::stderr()",
        ];
        let is_writer = matches!(path, "cli/printer.rs" | "telemetry/mod.rs");
        if prints.iter().any(|print| has_word(line, print)) && !is_writer {
            refuse("output goes through `Printer`");
        }
    }
    found
}

/// Whether a line asks for a GPU feature, or names a crate that only such a feature brings. (Differences between operating
/// systems are another matter and may stand anywhere.)
fn names_gpu_backend(line: &str) -> bool {
    let dense: String = line.chars().filter(|c| !c.is_whitespace()).collect();
    let features = ["cuda", "metal"].map(|name| format!("feature=\"{name}\""));
    let crates = [
        "candle_core",
        "candle_nn",
        "candle_kernels",
        "candle_metal_kernels",
        "cudarc",
        "objc2_metal",
    ];
    features.iter().any(|feature| dense.contains(feature))
        || crates.iter().any(|name| has_word(line, name))
}

fn layer_violations(file: &str, module: &str, row: usize, source: &str) -> Vec<String> {
    let is_forbidden = |path: &str| {
        let used = path.split("::").next().unwrap_or_default();
        match row_of(used) {
            None => false,
            Some(other) if row == ROWS.len() - 1 => other != row,
            Some(other) => used != module && (other <= row || crosses_seam(module, used, path)),
        }
    };
    used_paths(source)
        .into_iter()
        .filter(|(_, path)| is_forbidden(path))
        .map(|(number, path)| format!("{file}:{number}: `{module}` must not use `{path}`"))
        .collect()
}

/// The engine sees tokens, never text (but for the handle of a grammar); chat sees text, never tensors.
fn crosses_seam(module: &str, used: &str, path: &str) -> bool {
    match module {
        "engine" => used == "text" && !path.starts_with("text::grammar"),
        "chat" => matches!(used, "nn" | "kv" | "ops" | "quant"),
        _ => false,
    }
}

fn may_be_unsafe(path: &str) -> bool {
    let files = [
        "formats/mmap.rs",
        "threads/cores.rs",
        "threads/disjoint.rs",
        "threads/mod.rs",
    ];
    path.starts_with("ops/") || files.contains(&path)
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !(is_part(before) || word.ends_with(char::is_alphanumeric) && is_part(after))
    })
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Whether the parent module declares this file for tests only.
fn is_test_module(file: &Path) -> bool {
    let (Some(folder), Some(stem)) = (file.parent(), file.file_stem().and_then(|s| s.to_str()))
    else {
        return false;
    };
    let declaration = format!("#[cfg(test)]\nmod {stem};");
    let parents = [folder.join("mod.rs"), folder.with_extension("rs")];
    parents
        .iter()
        .any(|parent| fs::read_to_string(parent).is_ok_and(|text| text.contains(&declaration)))
}

#[test]
fn modules_use_lower_rows_only_and_keep_to_their_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = sources(&root);
    assert!(files.len() > 20, "only {} sources found", files.len());
    let found: Vec<String> = files
        .iter()
        .filter(|file| !is_test_module(file))
        .flat_map(|file| {
            let path = file
                .strip_prefix(&root)
                .unwrap()
                .to_str()
                .unwrap()
                .replace('\\', "/");
            violations(&path, &fs::read_to_string(file).unwrap())
        })
        .collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn every_row_of_the_table_in_lib_rs_is_known_here() {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    for module in text
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
    {
        assert!(row_of(module).is_some(), "`{module}` has no row");
        assert!(
            text.contains(&format!("[`{module}`]")) || text.contains(&format!("[`mod@{module}`]")),
            "`{module}` is not in the table of lib.rs"
        );
    }
}

#[test]
fn the_check_finds_what_it_looks_for() {
    let refused = [
        ("ops/norm/mod.rs", "use crate::nn::Linear;"),
        ("ops/norm/mod.rs", "fn f() { crate::model::load(); }"),
        ("ops/mod.rs", "use crate::formats::mmap;"),
        ("store/mod.rs", "use crate::engine::Request;"),
        (
            "engine/mod.rs",
            "use crate::{\n    error::Error,\n    kv::{pool, prefix},\n    store::scan,\n};",
        ),
        ("quant/mod.rs", "use crate::{env, ops};"),
        ("net.rs", "use crate::store::scan;"),
        ("engine/worker.rs", "use crate::text::Tokenizer;"),
        ("chat/turn.rs", "use crate::{error::Result, ops};"),
        ("odd.rs", "fn f() {}"),
        ("nn/linear.rs", "#[cfg(feature = \"cuda\")]"),
        (
            "cli/load.rs",
            "if cfg!(all(feature=\"metal\", target_os = \"macos\")) {}",
        ),
        ("model/load.rs", "use candle_core::Tensor;"),
        ("nn/mod.rs", "fn f(x: &cudarc::driver::CudaContext) {}"),
        ("hub/mod.rs", "let x = std::env::var(\"X\");"),
        ("store/scan.rs", "unsafe { f() }"),
        ("cli/list.rs", "println!(\"x\");"),
        ("text/mod.rs", "let out = std::io::stdout().lock();"),
    ];
    for (path, source) in refused {
        assert_eq!(
            violations(path, source).len(),
            1,
            "{path}: {source}: {:?}",
            violations(path, source)
        );
    }
    let fine = [
        (
            "ops/norm/cpu.rs",
            "use crate::quant::Encoding;\nunsafe fn f() {}\n#[cfg(feature = \"metal\")]",
        ),
        ("ops/tensor.rs", "use candle_core::Tensor;"),
        (
            "device/metal.rs",
            "use candle_metal_kernels::metal::Device;\nuse crate::error::Error;",
        ),
        (
            "formats/mmap.rs",
            "#[cfg(any(target_os = \"linux\", target_os = \"macos\"))]",
        ),
        (
            "engine/worker.rs",
            "use crate::engine::request::Request;\nuse crate::model::Transformer;",
        ),
        ("engine/worker.rs", "use crate::text::grammar::Matcher;"),
        ("units.rs", "use crate::error::Error;"),
        ("env.rs", "std::env::var(\"X\")"),
        (
            "hub/mod.rs",
            "// crate::cli is above\n/// [`crate::cli`]\nuse crate::store;\nlet args = std::env::args_os();",
        ),
        (
            "store/scan.rs",
            "let unsafe_names = 1;\n#[cfg(test)]\nmod tests {\n    use crate::cli::x;\n    println!();\n}\n",
        ),
        (
            "store/scan.rs",
            "printer.eprint(1);\nother_crate::cli::x();",
        ),
    ];
    for (path, source) in fine {
        assert_eq!(
            violations(path, source),
            [] as [String; 0],
            "{path}: {source}"
        );
    }
}
