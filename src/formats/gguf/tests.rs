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
fn a_set_with_another_number_of_tensors_than_announced_is_refused() {
    let sample = Sample::new().entry("split.tensors.count", kind::U32, 3u32.to_le_bytes());
    assert_refused(&sample, ErrorKind::Invalid, "`split.tensors.count` says 3");
}
