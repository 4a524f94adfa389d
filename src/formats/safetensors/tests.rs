use std::collections::BTreeMap;
use std::fs::File;

use super::*;
use crate::error::ErrorKind;
use crate::quant::Encoding;

/// A file with this header text and these data bytes.
fn file_with(header: &str, data: &[u8]) -> Vec<u8> {
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        data,
    ]
    .concat()
}

/// A well-formed file of F32 vectors.
fn file_of(tensors: &[(&str, usize)]) -> Vec<u8> {
    let mut at = 0;
    let entries = tensors.iter().map(|(name, len)| {
        let start = at;
        at += len * 4;
        format!(r#""{name}":{{"dtype":"F32","shape":[{len}],"data_offsets":[{start},{at}]}}"#)
    });
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    file_with(&header, &vec![1; at])
}

fn index_of(places: &[(&str, &str)]) -> String {
    let weight_map: BTreeMap<_, _> = places.iter().copied().collect();
    serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": weight_map }).to_string()
}

fn folder_of(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    files
        .iter()
        .for_each(|(name, bytes)| std::fs::write(folder.path().join(name), bytes).unwrap());
    folder
}

#[track_caller]
fn assert_refused(files: &[(&str, &[u8])], kind: ErrorKind, expected: &str) {
    let folder = folder_of(files);
    let error = SafetensorsFolder::open(folder.path()).expect_err("the folder was accepted");
    let text = error.chain();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(expected), "`{expected}` not in `{text}`");
}

#[track_caller]
fn assert_bad_file(file: &[u8], kind: ErrorKind, expected: &str) {
    assert_refused(&[("model.safetensors", file)], kind, expected);
}

#[test]
fn tensors_keep_shape_dtype_and_bytes_in_data_order() {
    let header = r#"{"__metadata__":{"format":"pt"},
        "late":{"dtype":"BF16","shape":[1,2],"data_offsets":[3,7]},
        "early":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},
        "none":{"dtype":"I64","shape":[0],"data_offsets":[7,7]},
        "scalar":{"dtype":"F8_E4M3","shape":[],"data_offsets":[7,8]}}"#;
    let folder = folder_of(&[(
        "model.safetensors",
        &file_with(header, &[1, 2, 3, 4, 5, 6, 7, 8]),
    )]);
    for path in [
        folder.path().to_path_buf(),
        folder.path().join("model.safetensors"),
    ] {
        let opened = SafetensorsFolder::open(&path).unwrap();
        let names: Vec<&str> = opened
            .tensors()
            .iter()
            .map(|tensor| tensor.name.as_str())
            .collect();
        assert_eq!(names, ["early", "late", "none", "scalar"]);
        let late = opened.find("late").unwrap();
        assert_eq!(
            (late.info.shape.as_slice(), late.info.encoding),
            ([1, 2].as_slice(), Encoding::BF16)
        );
        assert_eq!(late.bytes.as_slice(), [4, 5, 6, 7]);
        assert!(opened.find("none").unwrap().bytes.as_slice().is_empty());
        assert_eq!(opened.find("scalar").unwrap().bytes.as_slice(), [8]);
    }
}

#[test]
fn the_index_decides_which_files_are_read() {
    let index = index_of(&[("a", "x-2.safetensors"), ("b", "x-1.safetensors")]);
    let (one, two, stale) = (
        file_of(&[("b", 1)]),
        file_of(&[("a", 2), ("extra", 1)]),
        file_of(&[("old", 1)]),
    );
    let folder = folder_of(&[
        ("model.safetensors.index.json", index.as_bytes()),
        ("model-1.safetensors", &stale),
        ("x-1.safetensors", &one),
        ("x-2.safetensors", &two),
    ]);
    let opened = SafetensorsFolder::open(folder.path()).unwrap();
    let names: Vec<&str> = opened
        .tensors()
        .iter()
        .map(|tensor| tensor.name.as_str())
        .collect();
    assert_eq!(names, ["b", "a", "extra"]);
    assert_eq!(opened.paths().len(), 2);
}

#[test]
fn a_single_file_is_read_whatever_an_index_beside_it_says() {
    let (whole, part) = (file_of(&[("a", 1), ("b", 1)]), file_of(&[("a", 2)]));
    let good = index_of(&[("a", "x-1.safetensors")]);
    let outside = index_of(&[("a", "../x-1.safetensors")]);
    for index in [&good, &outside, "no JSON"] {
        let folder = folder_of(&[
            ("model.safetensors.index.json", index.as_bytes()),
            ("x-1.safetensors", &part),
            ("model.safetensors", &whole),
        ]);
        let log = folder.path().join("log");
        let subscriber = tracing_subscriber::fmt()
            .with_writer(Arc::new(File::create(&log).unwrap()))
            .finish();
        let opened = tracing::subscriber::with_default(subscriber, || {
            crate::formats::open(folder.path()).unwrap()
        });
        assert_eq!(opened.tensors().len(), 2);
        let said = std::fs::read_to_string(log).unwrap();
        let warnings = said.lines().filter(|line| line.contains("WARN"));
        assert_eq!(warnings.count(), 1, "{said}");
        assert!(said.contains("model.safetensors.index.json"), "{said}");
    }
}

#[test]
fn without_an_index_numbered_files_form_a_set_that_must_be_whole() {
    let (one, two, other) = (
        file_of(&[("a", 1)]),
        file_of(&[("b", 2)]),
        file_of(&[("a", 1), ("b", 2)]),
    );
    let set: [(&str, &[u8]); 3] = [
        ("model-00001-of-00002.safetensors", &one),
        ("model-00002-of-00002.safetensors", &two),
        ("consolidated.safetensors", &other),
    ];
    assert_eq!(
        SafetensorsFolder::open(folder_of(&set).path())
            .unwrap()
            .tensors()
            .len(),
        2
    );
    assert_refused(
        &set[1..],
        ErrorKind::NotFound,
        "has 1 of 2 checkpoint files",
    );
    let consolidated = folder_of(&set[2..]);
    assert_eq!(
        SafetensorsFolder::open(consolidated.path())
            .unwrap()
            .paths()
            .len(),
        1
    );
    assert_refused(
        &[("adapter_model.safetensors", &one)],
        ErrorKind::NotFound,
        "no safetensors checkpoint",
    );
}

#[test]
fn an_index_that_does_not_fit_the_files_is_refused() {
    let (one, two) = (file_of(&[("a", 1)]), file_of(&[("b", 1)]));
    let index = "model.safetensors.index.json";
    let check = |places: &[(&str, &str)], kind, expected: &str| {
        let text = index_of(places);
        let files = [
            (index, text.as_bytes()),
            ("1.safetensors", one.as_slice()),
            ("2.safetensors", &two),
        ];
        assert_refused(&files, kind, expected);
    };
    check(
        &[("a", "1.safetensors"), ("b", "3.safetensors")],
        ErrorKind::NotFound,
        "3.safetensors` is missing",
    );
    check(
        &[("a", "1.safetensors"), ("c", "2.safetensors")],
        ErrorKind::Invalid,
        "`c` is not in",
    );
    check(
        &[("a", "2.safetensors"), ("b", "1.safetensors")],
        ErrorKind::Invalid,
        "`a` is in this file, but",
    );
    check(&[], ErrorKind::Invalid, "`weight_map` is empty");
    for outside in [
        "../1.safetensors",
        "/1.safetensors",
        "a\\1.safetensors",
        "1.bin",
        "",
        "1.safetensors\0",
    ] {
        check(
            &[("a", outside)],
            ErrorKind::Invalid,
            &format!(
                "the path `{}` of tensor `a` is not allowed",
                outside.escape_debug()
            ),
        );
    }
    for text in [
        "",
        "[]",
        "{}",
        r#"{"weight_map":{"a":1}}"#,
        &"[".repeat(100_000),
        r#"{"weight_map":"#,
    ] {
        let files = [(index, text.as_bytes()), ("1.safetensors", one.as_slice())];
        assert_refused(
            &files,
            ErrorKind::Invalid,
            "no JSON object with a `weight_map`",
        );
    }
}

#[test]
fn a_tensor_in_two_files_or_twice_in_one_is_refused() {
    let file = file_of(&[("a", 1)]);
    let set: [(&str, &[u8]); 2] = [
        ("model-1.safetensors", &file),
        ("model-2.safetensors", &file),
    ];
    assert_refused(&set, ErrorKind::Invalid, "tensor `a` exists more than once");
    let entry = r#""a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    assert_bad_file(
        &file_with(&format!("{{{entry},{entry}}}"), &[0]),
        ErrorKind::Invalid,
        "`a` exists twice",
    );
}

#[test]
fn a_file_cut_or_lengthened_anywhere_is_refused() {
    let whole = file_of(&[("a", 3), ("b", 1)]);
    for len in 0..whole.len() {
        let error = parse_header(&whole[..len]).expect_err("a cut file was accepted");
        assert_eq!(error.kind(), ErrorKind::Invalid, "at {len}: {error}");
    }
    let longer = [whole.as_slice(), &[0]].concat();
    assert_bad_file(
        &longer,
        ErrorKind::Invalid,
        "do not end where the file ends",
    );
    assert_bad_file(
        &whole[..whole.len() - 1],
        ErrorKind::Invalid,
        "do not end where the file ends",
    );
}

#[test]
fn claimed_header_lengths_are_not_believed() {
    for len in [1 << 63, u64::MAX, u64::MAX - 7, (32 << 20) + 1, 100_000_000] {
        let file = [&len.to_le_bytes(), b"{}".as_slice()].concat();
        assert_bad_file(
            &file,
            ErrorKind::Invalid,
            &format!("the header claims {len} bytes"),
        );
    }
    assert_bad_file(
        &[&100u64.to_le_bytes(), b"{}".as_slice()].concat(),
        ErrorKind::Invalid,
        "has only 10",
    );
    assert_bad_file(b"", ErrorKind::Invalid, "only 0 bytes");
    let pointer = b"version https://git-lfs.github.com/spec/v1\n";
    assert_bad_file(pointer, ErrorKind::Invalid, "Git LFS pointer");
}

#[test]
fn headers_that_are_not_what_they_should_be_are_refused() {
    let deep = format!(r#"{{"a":{{"shape":{}"#, "[".repeat(100_000));
    let deep_object = r#"{"a":"#.repeat(100_000);
    let wide = format!(
        r#"{{"a":{{"dtype":"U8","shape":[{}1],"data_offsets":[0,1]}}}}"#,
        "1,".repeat(16)
    );
    for text in [
        "",
        "nonsense",
        "[]",
        "{",
        "{}{}",
        r#"{"a":1}"#,
        r#"{"a":{}}"#,
        r#"{"a":null}"#,
        &deep,
        &deep_object,
        &wide,
    ] {
        let error = parse_header(&file_with(text, &[0])).expect_err("nonsense was accepted");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{}", error.chain());
    }
    assert!(parse_header(&file_with("{\"\u{e4}\":\u{0}", &[])).is_err());
    assert!(parse_header(&[&2u64.to_le_bytes(), b"\xff\xff".as_slice()].concat()).is_err());
}

#[test]
fn offsets_shapes_and_dtypes_that_disagree_are_refused() {
    let check = |dtype: &str, shape: &str, offsets: &str, data: usize, kind| {
        let header =
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#);
        let error = parse_header(&file_with(&header, &vec![0; data])).expect_err(&header);
        assert_eq!(error.kind(), kind, "{header}: {}", error.chain());
    };
    check("F32", "[2]", "[0,4]", 4, ErrorKind::Invalid);
    check("F32", "[1]", "[4,0]", 4, ErrorKind::Invalid);
    check("F32", "[1]", "[4,8]", 8, ErrorKind::Invalid);
    check(
        "F32",
        "[1]",
        "[18446744073709551612,18446744073709551615]",
        4,
        ErrorKind::Invalid,
    );
    check(
        "F32",
        "[4611686018427387904]",
        "[0,0]",
        0,
        ErrorKind::Invalid,
    );
    check(
        "F32",
        "[4294967296,4294967296,4294967296]",
        "[0,0]",
        0,
        ErrorKind::Invalid,
    );
    check("F32", "[-1]", "[0,4]", 4, ErrorKind::Invalid);
    check("F33", "[1]", "[0,4]", 4, ErrorKind::Invalid);
    check("C64", "[1]", "[0,8]", 8, ErrorKind::Unsupported);
    let overlap = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
        "b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#;
    assert_bad_file(
        &file_with(overlap, &[0; 6]),
        ErrorKind::Invalid,
        "`b` overlaps its neighbour",
    );
}
