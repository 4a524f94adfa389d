use super::header::{self, HeaderError};
use super::sample::{Sample, array, kind};
use super::*;
use crate::error::ErrorKind;
use crate::quant::Encoding;

fn open_bytes(bytes: &[u8]) -> Result<GgufFile> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    GgufFile::open(&path)
}

/// The message of the error that opening `sample` gives.
#[track_caller]
fn refusal(sample: &Sample, kind: ErrorKind) -> String {
    let error = open_bytes(&sample.bytes()).expect_err("the file was accepted");
    assert_eq!(error.kind(), kind, "{}", error.chain());
    assert!(error.to_string().starts_with("cannot open `"), "{error}");
    error.chain()
}

#[track_caller]
fn assert_refused(sample: &Sample, kind: ErrorKind, expected: &str) {
    let message = refusal(sample, kind);
    assert!(
        message.contains(expected),
        "`{expected}` not in `{message}`"
    );
}

#[test]
fn tensors_have_outermost_dimensions_first_and_their_own_bytes() {
    let file = open_bytes(&Sample::new().bytes()).unwrap();
    assert_eq!(file.tensors().len(), 2);
    let a = file.find("a.weight").unwrap();
    assert_eq!(
        (a.info.shape.as_slice(), a.info.encoding),
        ([2, 3].as_slice(), Encoding::F32)
    );
    assert_eq!(a.bytes.as_slice(), (0..24).collect::<Vec<u8>>());
    let b = file.find("b.weight").unwrap();
    assert_eq!(
        (b.info.shape.as_slice(), b.info.encoding),
        ([2, 1, 32].as_slice(), Encoding::Q8_0)
    );
    assert_eq!(b.bytes.as_slice(), (0..68).collect::<Vec<u8>>());
    assert!(file.find("c.weight").is_none());
}

#[test]
fn version_2_files_and_scalars_are_read() {
    let mut sample = Sample::new().tensor("scale", &[], 0, vec![0, 0, 128, 63]);
    sample.version = 2;
    let file = open_bytes(&sample.bytes()).unwrap();
    let scale = file.find("scale").unwrap();
    assert_eq!(
        (scale.info.num_elements(), scale.bytes.as_slice()),
        (1, [0, 0, 128, 63].as_slice())
    );
}

#[test]
fn the_alignment_of_the_file_moves_the_data() {
    for alignment in [8u32, 64, 65536] {
        let mut sample =
            Sample::new().entry("general.alignment", kind::U32, alignment.to_le_bytes());
        sample.alignment = alignment as usize;
        let file = open_bytes(&sample.bytes()).unwrap();
        assert_eq!(
            file.find("b.weight").unwrap().bytes.as_slice(),
            (0..68).collect::<Vec<u8>>()
        );
    }
}

#[test]
fn impossible_alignments_are_refused() {
    for alignment in [0u64, 1, 3, 24, 1 << 17, 1 << 30, u64::MAX] {
        let sample = Sample::new().entry("general.alignment", kind::U64, alignment.to_le_bytes());
        assert_refused(
            &sample,
            ErrorKind::Invalid,
            &format!("`general.alignment` is {alignment}"),
        );
    }
    let sample = Sample::new().entry("general.alignment", kind::F32, 32f32.to_le_bytes());
    assert_refused(
        &sample,
        ErrorKind::Invalid,
        "`general.alignment` is not an integer",
    );
}

#[test]
fn an_unaligned_offset_is_read_where_it_points() {
    let sample = Sample::new().with_tensor(1, |tensor| tensor.offset = Some(29));
    let file = open_bytes(&sample.bytes()).unwrap();
    let expected: Vec<u8> = [0, 0, 0].into_iter().chain(0..65).collect();
    assert_eq!(file.find("b.weight").unwrap().bytes.as_slice(), expected);
}

#[test]
fn versions_that_are_not_read_are_named() {
    let with_version = |version| Sample {
        version,
        ..Sample::new()
    };
    assert_refused(&with_version(1), ErrorKind::Unsupported, "version 1");
    assert_refused(&with_version(4), ErrorKind::Unsupported, "version 4");
    assert_refused(&with_version(0), ErrorKind::Unsupported, "version 0");
    assert_refused(
        &with_version(3u32.swap_bytes()),
        ErrorKind::Unsupported,
        "big endian",
    );
    let other = open_bytes(b"tjgg\x01\0\0\0 and so on").unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Unsupported);
    let pointer =
        open_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n").unwrap_err();
    assert!(pointer.to_string().contains("Git LFS pointer"), "{pointer}");
    let page = open_bytes(b"<!DOCTYPE html>").unwrap_err();
    assert!(page.to_string().contains("`<!DO`"), "{page}");
}

#[test]
fn claimed_counts_are_not_believed() {
    for count in [(1 << 16) + 1, 1 << 32, 1 << 63, u64::MAX] {
        let entries = Sample {
            num_entries: Some(count),
            ..Sample::new()
        };
        assert_refused(
            &entries,
            ErrorKind::Invalid,
            &format!("claims {count} metadata entries"),
        );
        let tensors = Sample {
            num_tensors: Some(count),
            ..Sample::new()
        };
        assert_refused(
            &tensors,
            ErrorKind::Invalid,
            &format!("claims {count} tensors"),
        );
    }
    let many = Sample {
        num_entries: Some(1 << 16),
        ..Sample::new()
    };
    assert_refused(&many, ErrorKind::Invalid, "the header needs at least");
    let many = Sample {
        num_tensors: Some(1 << 16),
        ..Sample::new()
    };
    assert_refused(&many, ErrorKind::Invalid, "the header needs at least");
}

#[test]
fn claimed_lengths_are_not_believed() {
    for len in [1 << 20, 1 << 62, u64::MAX - 3, u64::MAX] {
        let text = Sample::new().entry("k", kind::STRING, len.to_le_bytes());
        assert_refused(&text, ErrorKind::Invalid, "the header needs at least");
        for element in 0..13u32 {
            let value = [element.to_le_bytes().as_slice(), &len.to_le_bytes()].concat();
            let list = Sample::new().entry("k", kind::ARRAY, value);
            assert_refused(&list, ErrorKind::Invalid, "the header needs at least");
        }
        let strings = [
            kind::STRING.to_le_bytes().as_slice(),
            &1u64.to_le_bytes(),
            &len.to_le_bytes(),
        ]
        .concat();
        assert_refused(
            &Sample::new().entry("k", kind::ARRAY, strings),
            ErrorKind::Invalid,
            "the header needs",
        );
    }
}

#[test]
fn key_and_name_lengths_are_bounded() {
    let key = Sample::new().entry(&"k".repeat(257), kind::U8, [0]);
    assert_refused(
        &key,
        ErrorKind::Invalid,
        "metadata key number 4 is 257 bytes",
    );
    assert_refused(
        &Sample::new().entry("", kind::U8, [0]),
        ErrorKind::Invalid,
        "0 bytes",
    );
    let name = Sample::new().with_tensor(1, |tensor| tensor.name = vec![b'n'; 1000]);
    assert_refused(
        &name,
        ErrorKind::Invalid,
        "tensor name number 1 is 1000 bytes",
    );
    let mut long = Sample::new().bytes();
    long[24..32].copy_from_slice(&(1u64 << 62).to_le_bytes());
    assert!(
        open_bytes(&long)
            .unwrap_err()
            .to_string()
            .contains("4611686018427387904 bytes long")
    );
}

#[test]
fn names_and_keys_are_unique_and_utf8() {
    let key = Sample::new().entry("llama.block_count", kind::U8, [1]);
    assert_refused(&key, ErrorKind::Invalid, "`llama.block_count` exists twice");
    let name = Sample::new().with_tensor(1, |tensor| tensor.name = b"a.weight".to_vec());
    assert_refused(&name, ErrorKind::Invalid, "`a.weight` exists twice");
    let mut bytes = Sample::new();
    bytes.entries[1].0 = b"k\xff".to_vec();
    assert_refused(&bytes, ErrorKind::Invalid, r"`k\xff`");
    let bytes = Sample::new().with_tensor(0, |tensor| tensor.name = b"\xc0n".to_vec());
    assert_refused(&bytes, ErrorKind::Invalid, r"`\xc0n`");
}

#[test]
fn arrays_may_nest_a_little_but_not_without_end() {
    let nest = |depth: usize| {
        let innermost = array(kind::U8, &[vec![1], vec![2]]);
        (1..depth).fold(innermost, |inner, _| array(kind::ARRAY, &[inner]))
    };
    let sample = Sample::new()
        .entry("k", kind::ARRAY, nest(4))
        .entry("after", kind::U8, [9]);
    let file = open_bytes(&sample.bytes()).unwrap();
    assert_eq!(file.metadata().find_u64("after").unwrap(), Some(9));
    assert!(
        file.metadata()
            .find_u64_array("k")
            .unwrap_err()
            .to_string()
            .contains("an array of array")
    );
    for depth in [5, 2_000] {
        let sample = Sample::new().entry("k", kind::ARRAY, nest(depth));
        assert_refused(&sample, ErrorKind::Invalid, "`k` nests arrays");
    }
}

#[test]
fn unknown_value_types_are_refused() {
    for number in [13, u32::MAX] {
        let message = format!("`k` has a value of unknown type {number}");
        assert_refused(
            &Sample::new().entry("k", number, [0; 8]),
            ErrorKind::Invalid,
            &message,
        );
    }
    let element = Sample::new().entry("k", kind::ARRAY, array(13, &[vec![0; 8]]));
    assert_refused(
        &element,
        ErrorKind::Invalid,
        "`k` has a value of unknown type 13",
    );
}

#[test]
fn impossible_shapes_are_refused() {
    let with_dims =
        |dims: &[u64]| Sample::new().with_tensor(0, |tensor| tensor.dims = dims.to_vec());
    let wraps: [&[u64]; 6] = [
        &[1 << 32, 1 << 32],
        &[1 << 32, 1 << 31, 2, 1],
        &[u64::MAX, u64::MAX, u64::MAX, u64::MAX],
        &[(1 << 63) + 1, 2],
        &[0],
        &[4, 0, 4],
    ];
    for dims in wraps {
        assert_refused(
            &with_dims(dims),
            ErrorKind::Invalid,
            "`a.weight` has impossible dimensions",
        );
    }
    // The elements can be counted, their bytes cannot.
    assert_refused(
        &with_dims(&[1 << 62]),
        ErrorKind::Invalid,
        "`a.weight` has rows of 4611686018427387904",
    );
    assert_refused(
        &with_dims(&[1 << 31, 1 << 32]),
        ErrorKind::Invalid,
        "impossible dimensions",
    );
    assert_refused(&with_dims(&[1; 5]), ErrorKind::Invalid, "has 5 dimensions");
    let odd_row = Sample::new().with_tensor(1, |tensor| tensor.dims = vec![31, 2]);
    assert_refused(
        &odd_row,
        ErrorKind::Invalid,
        "rows of 31 elements, not a multiple of the 32",
    );
}

#[test]
fn tensor_types_that_are_not_read_are_named_with_the_tensor() {
    let with_type = |number| Sample::new().with_tensor(0, |tensor| tensor.ggml_type = number);
    assert_refused(
        &with_type(16),
        ErrorKind::Unsupported,
        "tensor `a.weight`: tensor type `IQ2_XXS`",
    );
    assert_refused(
        &with_type(99),
        ErrorKind::Unsupported,
        "tensor `a.weight`: tensor type number 99",
    );
}

#[test]
fn data_outside_the_file_or_overlapping_is_refused() {
    let with_offset = |offset| Sample::new().with_tensor(1, |tensor| tensor.offset = Some(offset));
    for offset in [33, 1 << 20, 1 << 62, u64::MAX - 16, u64::MAX] {
        assert_refused(
            &with_offset(offset),
            ErrorKind::Invalid,
            "`b.weight` should take 68 bytes",
        );
    }
    for offset in [0, 8, 23] {
        assert_refused(
            &with_offset(offset),
            ErrorKind::Invalid,
            "`a.weight` and `b.weight` overlap",
        );
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = Sample::new().bytes();
    for len in 0..whole.len() {
        let error = open_bytes(&whole[..len]).expect_err("a cut file was accepted");
        assert_eq!(error.kind(), ErrorKind::Invalid, "at {len}: {error}");
    }
}

#[test]
fn a_prefix_of_a_header_asks_for_more_until_it_is_whole() {
    let sample = Sample::new();
    let (header, file) = (sample.header(), sample.bytes());
    for len in 0..header.len() {
        match header::parse(&file[..len]) {
            Err(HeaderError::Incomplete { need }) => {
                assert!(
                    need > len as u64 && need <= header.len() as u64,
                    "{len} of {}: {need}",
                    header.len()
                );
            }
            other => panic!("{len} of {} bytes: {other:?}", header.len()),
        }
    }
    let parsed = header::parse(&header).unwrap();
    assert_eq!(
        parsed.data_start as usize,
        header.len().next_multiple_of(32)
    );
    let infos = describe_tensors(&parsed).unwrap();
    assert_eq!(infos, open_bytes(&file).unwrap().tensors());
    // What is wrong is wrong however little of it is there.
    assert!(matches!(header::parse(b"GGML"), Err(HeaderError::Bad(_))));
}

#[test]
fn metadata_can_be_read_from_fetched_bytes() {
    let bytes = Sample::new().header();
    let header = header::parse(&bytes).unwrap();
    let metadata = Metadata::new(HeaderBytes::Owned(bytes.into()), &header);
    assert_eq!(
        metadata.find_str("general.architecture").unwrap(),
        Some("llama")
    );
    let tokens: Vec<&[u8]> = metadata
        .find_bytes_array("tokenizer.ggml.tokens")
        .unwrap()
        .unwrap()
        .collect();
    assert_eq!(tokens, [b"<s>".as_slice(), b"\xff\xfe", b""]);
}

/// A set of three files, written under the names of `order`.
fn split_set(folder: &Path, order: [u16; 3]) {
    for (place, number) in order.into_iter().enumerate() {
        let mut shard = Sample::new();
        shard.entries.truncate(usize::from(number == 0) * 4);
        shard.tensors.clear();
        let shard = shard
            .entry("split.no", kind::I16, number.to_le_bytes())
            .entry("split.count", kind::I16, 3u16.to_le_bytes())
            .entry("split.tensors.count", kind::I32, 3i32.to_le_bytes())
            .tensor(&format!("t{number}"), &[1], 0, vec![number as u8; 4]);
        let name = format!("model-{:05}-of-00003.gguf", place + 1);
        std::fs::write(folder.join(name), shard.bytes()).unwrap();
    }
}

#[test]
fn any_file_of_a_split_set_opens_all_of_it_in_split_order() {
    for order in [[0, 1, 2], [2, 0, 1]] {
        let folder = tempfile::tempdir().unwrap();
        split_set(folder.path(), order);
        for place in 1..=3 {
            let file = GgufFile::open(
                &folder
                    .path()
                    .join(format!("model-{place:05}-of-00003.gguf")),
            )
            .unwrap();
            let names: Vec<&str> = file
                .tensors()
                .iter()
                .map(|tensor| tensor.name.as_str())
                .collect();
            assert_eq!(names, ["t0", "t1", "t2"]);
            assert_eq!(file.find("t2").unwrap().bytes.as_slice(), [2; 4]);
            assert_eq!(
                file.metadata().find_u64("llama.block_count").unwrap(),
                Some(2)
            );
            assert_eq!(file.paths().len(), 3);
        }
    }
}

#[test]
fn a_split_set_that_is_not_whole_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    split_set(folder.path(), [0, 1, 2]);
    let first = folder.path().join("model-00001-of-00003.gguf");
    let second = folder.path().join("model-00002-of-00003.gguf");

    std::fs::copy(&first, &second).unwrap();
    let repeated = GgufFile::open(&first).unwrap_err();
    assert!(
        repeated
            .to_string()
            .contains("`split.no` is 0 here and in another"),
        "{repeated}"
    );

    std::fs::remove_file(&second).unwrap();
    let missing = GgufFile::open(&first).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(
        missing.to_string().contains("model-00002-of-00003.gguf"),
        "{missing}"
    );

    let renamed = folder.path().join("model.gguf");
    std::fs::rename(&first, &renamed).unwrap();
    let renamed = GgufFile::open(&renamed).unwrap_err();
    assert!(
        renamed.to_string().contains("one of 3 of a split set"),
        "{renamed}"
    );
}

#[test]
fn a_tensor_in_two_files_of_a_set_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let shard = Sample::new().bytes();
    std::fs::write(folder.path().join("m-00001-of-00002.gguf"), &shard).unwrap();
    std::fs::write(folder.path().join("m-00002-of-00002.gguf"), &shard).unwrap();
    let error = GgufFile::open(&folder.path().join("m-00001-of-00002.gguf")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("tensor `a.weight` exists more than once"),
        "{error}"
    );
}

#[test]
fn a_set_with_another_number_of_tensors_than_announced_is_refused() {
    let sample = Sample::new().entry("split.tensors.count", kind::U32, 3u32.to_le_bytes());
    assert_refused(&sample, ErrorKind::Invalid, "`split.tensors.count` says 3");
}

#[test]
fn shard_names_are_exact() {
    let shard = ShardName::parse("a-b-00002-of-00010.gguf").unwrap();
    assert_eq!(
        shard,
        ShardName {
            prefix: "a-b".into(),
            number: 2,
            total: 10
        }
    );
    for name in [
        "a-00000-of-00002.gguf",
        "a-00003-of-00002.gguf",
        "a-1-of-2.gguf",
        "a-00001-of-00002",
        "a.gguf",
    ] {
        assert_eq!(ShardName::parse(name), None, "{name}");
    }
}

#[test]
fn mixed_types_read_as_the_numbers_they_are() {
    let sample = Sample::new()
        .entry("negative", kind::I64, (-5i64).to_le_bytes())
        .entry("flag", kind::BOOL, [1])
        .entry("one", kind::U8, [1])
        .entry("double", kind::F64, 0.5f64.to_le_bytes())
        .entry("huge", kind::U64, u64::MAX.to_le_bytes())
        .entry(
            "layers",
            kind::ARRAY,
            array(kind::I32, &[vec![4, 0, 0, 0], vec![8, 0, 0, 0]]),
        )
        .entry(
            "signs",
            kind::ARRAY,
            array(kind::I32, &[vec![4, 0, 0, 0], vec![255; 4]]),
        )
        .entry("flags", kind::ARRAY, array(kind::BOOL, &[vec![1], vec![0]]))
        .entry("empty", kind::ARRAY, array(kind::I32, &[]));
    let file = open_bytes(&sample.bytes()).unwrap();
    let metadata = file.metadata();

    assert_eq!(metadata.find_i64("negative").unwrap(), Some(-5));
    let negative = metadata.find_u64("negative").unwrap_err().to_string();
    assert_eq!(
        negative,
        "metadata key `negative` holds the integer -5, expected an unsigned integer"
    );
    assert_eq!(metadata.find_u64("huge").unwrap(), Some(u64::MAX));
    assert!(metadata.find_i64("huge").is_err());
    assert_eq!(metadata.find_f32("one").unwrap(), Some(1.0));
    assert_eq!(metadata.find_f32("double").unwrap(), Some(0.5));
    assert_eq!(
        (
            metadata.find_bool("flag").unwrap(),
            metadata.find_bool("one").unwrap()
        ),
        (Some(true), Some(true))
    );
    assert!(metadata.find_bool("negative").is_err());
    assert_eq!(metadata.find_u64("nothing").unwrap(), None);
    assert!(
        metadata
            .find_str("flag")
            .unwrap_err()
            .to_string()
            .contains("holds the bool true, expected a string")
    );

    assert_eq!(
        metadata.find_u64_or_array("layers", 2).unwrap(),
        Some(vec![4, 8])
    );
    assert_eq!(
        metadata.find_u64_or_array("one", 3).unwrap(),
        Some(vec![1; 3])
    );
    assert!(
        metadata
            .find_u64_or_array("layers", 3)
            .unwrap_err()
            .to_string()
            .contains("each of 3 layers")
    );
    assert_eq!(metadata.find_i32_array("signs").unwrap(), Some(vec![4, -1]));
    let sign = metadata.find_u64_array("signs").unwrap_err().to_string();
    assert!(sign.contains("the integer -1 at index 1"), "{sign}");
    assert_eq!(
        metadata.find_bool_array("flags").unwrap(),
        Some(vec![true, false])
    );
    assert_eq!(
        metadata.find_f32_array("layers").unwrap(),
        Some(vec![4.0, 8.0])
    );
    assert_eq!(metadata.find_u64_array("empty").unwrap(), Some(vec![]));
    assert_eq!(metadata.find_str_array("empty").unwrap(), Some(vec![]));
    let text = metadata
        .find_str_array("tokenizer.ggml.tokens")
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("`tokenizer.ggml.tokens`: string 1 is not UTF-8"),
        "{text}"
    );
    assert_eq!(
        metadata.find_array_len("tokenizer.ggml.tokens").unwrap(),
        Some(3)
    );
    assert!(
        metadata
            .find_u64_array("tokenizer.ggml.tokens")
            .unwrap_err()
            .to_string()
            .contains("array of string")
    );
    assert_eq!(
        metadata.find_str("general.architecture").unwrap(),
        Some("llama")
    );
}
