//! Images made here by a small writer, and one that nvcc wrote.

use proptest::prelude::*;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::fatbin::entries;
use super::*;

/// Written by nvcc 13.0 from
/// `extern "C" __global__ void scale(float *x, float a, int n)
/// { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= a; }` with
/// `-fatbin -gencode arch=compute_A,code=compute_A` for A = 75, 90a and 100f.
const SCALE: &[u8] = include_bytes!("../../tests/data/scale.fatbin");

const LZ4: u64 = 0x2011;
const ZSTD: u64 = 0x8011;
const PLAIN: u64 = 0x11;

fn text(arch: &str) -> String {
    format!(".version 9.0\n.target sm_{arch}\n.address_size 64\n.entry k() {{ ret; }}\n")
}

/// One entry as nvcc lays it out; `expanded` overrides what the header says.
fn entry(kind: u16, arch: u32, flags: u64, payload: &[u8], expanded: Option<u64>) -> Vec<u8> {
    let stored = match flags {
        LZ4 => lz4_flex::block::compress(payload),
        ZSTD => compress_to_vec(payload, CompressionLevel::Fastest),
        _ => payload.to_vec(),
    };
    let compressed = if flags == PLAIN {
        0
    } else {
        u32::try_from(stored.len()).unwrap()
    };
    let padded = stored.len().next_multiple_of(8);
    let name = b"a.cu\0\0\0\0";
    let header = 64 + name.len();
    let expanded = expanded.unwrap_or(if flags == PLAIN {
        0
    } else {
        payload.len() as u64
    });
    let mut bytes = Vec::new();
    bytes.extend(kind.to_le_bytes());
    bytes.extend(0x0101_u16.to_le_bytes());
    bytes.extend(u32::try_from(header).unwrap().to_le_bytes());
    bytes.extend((padded as u64).to_le_bytes());
    bytes.extend(compressed.to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(0_u16.to_le_bytes());
    bytes.extend(9_u16.to_le_bytes());
    bytes.extend(arch.to_le_bytes());
    bytes.extend(64_u32.to_le_bytes());
    bytes.extend(4_u32.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend(expanded.to_le_bytes());
    bytes.extend(name);
    bytes.extend(&stored);
    bytes.resize(header + padded, 0);
    bytes
}

fn fatbin(entries: &[Vec<u8>]) -> Vec<u8> {
    let body = entries.concat();
    let mut bytes = Vec::new();
    bytes.extend(FATBIN_MAGIC.to_le_bytes());
    bytes.extend(1_u16.to_le_bytes());
    bytes.extend(16_u16.to_le_bytes());
    bytes.extend((body.len() as u64).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn ptx(arch: u32, flags: u64) -> Vec<u8> {
    entry(1, arch, flags, text(&arch.to_string()).as_bytes(), None)
}

fn elf(arch: u32) -> Vec<u8> {
    entry(2, arch, PLAIN, b"\x7fELF", None)
}

fn chosen(image: &[u8], device: u32) -> Result<String, u32> {
    select(image, device)
        .map(|ptx| ptx.text.into_owned())
        .map_err(|error| error.cuda_error())
}

#[test]
fn images_are_told_apart_by_their_first_bytes() {
    assert_eq!(
        classify(&FATBIN_MAGIC.to_le_bytes()),
        Some(ImageKind::Fatbin)
    );
    assert_eq!(
        classify(&WRAPPER_MAGIC.to_le_bytes()),
        Some(ImageKind::Wrapper)
    );
    assert_eq!(classify(b"\n\n  .version 9.0"), Some(ImageKind::Ptx));
    assert_eq!(classify(b"// made by hand"), Some(ImageKind::Ptx));
    let mut cubin = b"\x7fELF".to_vec();
    cubin.resize(18, 0);
    assert_eq!(
        classify(&[&cubin[..], &EM_CUDA].concat()),
        Some(ImageKind::Cubin)
    );
    assert_eq!(
        classify(&[&cubin[..], &[62, 0]].concat()),
        None,
        "machine code of a CPU"
    );
    for other in [
        &b""[..],
        b"\0\0\0\0",
        b"hello",
        b"kernel.ptx",
        &[0x50, 0xed],
    ] {
        assert_eq!(classify(other), None);
    }
}

#[test]
fn the_newest_ptx_that_the_device_runs_is_chosen() {
    for flags in [PLAIN, LZ4, ZSTD] {
        let image = fatbin(&[
            elf(90),
            ptx(60, flags),
            ptx(80, flags),
            ptx(75, flags),
            ptx(120, flags),
        ]);
        for (device, expected) in [(60, "60"), (75, "75"), (79, "75"), (90, "80"), (120, "120")] {
            assert_eq!(
                chosen(&image, device),
                Ok(text(expected)),
                "{device} {flags:x}"
            );
        }
        assert_eq!(chosen(&image, 52), Err(209));
        assert_eq!(select(&image, 75).unwrap().name, Some("a.cu"));
    }
}

#[test]
#[cfg_attr(miri, ignore = "unpacking takes minutes")]
fn the_file_that_nvcc_wrote_is_read() {
    let found: Vec<_> = entries(SCALE).map(|entry| entry.unwrap()).collect();
    let facts: Vec<_> = found
        .iter()
        .map(|e| (e.kind, e.arch, e.version, e.reach()))
        .collect();
    assert_eq!(
        facts,
        [
            (EntryKind::Ptx, 75, (9, 0), Reach::Newer),
            (EntryKind::Ptx, 90, (9, 0), Reach::Exact),
            (EntryKind::Ptx, 100, (9, 0), Reach::Family),
        ]
    );
    for (device, target) in [
        (75, 75),
        (89, 75),
        (90, 90),
        (91, 75),
        (103, 100),
        (120, 75),
    ] {
        let ptx = select(SCALE, device).unwrap();
        let module = crate::parse(&ptx.text).unwrap();
        assert_eq!(module.target, target);
        assert_eq!(module.functions[0].name, "scale");
        assert_eq!(
            crate::layout::params(&module.functions[0]),
            [(0, 8), (8, 4), (12, 4)]
        );
    }
    assert_eq!(chosen(SCALE, 70), Err(209));
}

#[test]
fn machine_code_alone_is_no_binary_and_the_message_says_what_to_do() {
    let error = select(&fatbin(&[elf(80), elf(90)]), 90).unwrap_err();
    assert_eq!(error.cuda_error(), 209);
    let message = error.to_string();
    assert!(message.contains("sm_80, sm_90"), "{message}");
    assert!(
        message.contains("-gencode arch=compute_90,code=compute_90"),
        "{message}"
    );
    assert_eq!(chosen(&fatbin(&[]), 90), Err(209));
}

#[test]
fn texts_are_judged_by_their_head() {
    assert_eq!(chosen(text("75").as_bytes(), 90), Ok(text("75")));
    let ended = [text("75").as_bytes(), b"\0 \xff junk"].concat();
    assert_eq!(chosen(&ended, 90), Ok(text("75")));
    assert_eq!(chosen(text("120").as_bytes(), 90), Err(218));
    assert_eq!(chosen(text("90a").as_bytes(), 90), Ok(text("90a")));
    assert_eq!(chosen(text("90a").as_bytes(), 100), Err(218));
    assert_eq!(chosen(text("100f").as_bytes(), 103), Ok(text("100f")));
    assert_eq!(chosen(text("100f").as_bytes(), 120), Err(218));
    assert_eq!(chosen(b".version 10.0\n.target sm_75", 90), Err(222));
    assert_eq!(chosen(b".version 5.0", 90), Err(218));
    assert_eq!(chosen(b".version x", 90), Err(218));
    assert_eq!(chosen(b".\xff", 90), Err(218));
    assert_eq!(chosen(b"// nothing", 90), Err(200));
    assert_eq!(chosen(b"garbage", 90), Err(200));
}

#[test]
fn a_cut_fatbin_is_an_invalid_image() {
    let image = fatbin(&[ptx(75, ZSTD), ptx(80, LZ4)]);
    let step = if cfg!(miri) { 97 } else { 1 };
    for length in (0..image.len()).step_by(step) {
        assert_eq!(chosen(&image[..length], 90), Err(200), "{length} bytes");
    }
}

#[test]
fn fatbins_that_follow_each_other_are_all_walked() {
    let image = [
        fatbin(&[ptx(60, PLAIN)]),
        fatbin(&[]),
        fatbin(&[ptx(75, LZ4)]),
    ]
    .concat();
    assert_eq!(chosen(&image, 90), Ok(text("75")));
}

#[test]
fn claims_of_size_are_not_believed() {
    let source = text("75");
    let claim = |flags, size| fatbin(&[entry(1, 75, flags, source.as_bytes(), Some(size))]);
    for flags in [LZ4, ZSTD] {
        for size in [0, 1, source.len() as u64 - 1, source.len() as u64 + 1] {
            let error = select(&claim(flags, size), 90).unwrap_err();
            assert_eq!(error, ImageError::Damaged(Damage::Compression), "{size}");
        }
        for size in [FREE + 1, 1 << 40, u64::MAX] {
            let error = select(&claim(flags, size), 90).unwrap_err();
            assert!(
                matches!(error, ImageError::Damaged(Damage::TooLarge { .. })),
                "{size}"
            );
        }
    }
    let limits = Limits {
        max_bytes: 10,
        ..Limits::default()
    };
    let error = select_within(&claim(LZ4, source.len() as u64), 90, &limits).unwrap_err();
    assert!(matches!(error, ImageError::Damaged(Damage::NoRoom { .. })));
    assert_eq!(error.cuda_error(), 2);
}

/// What small payloads may expand to.
const FREE: u64 = 1 << 20;

#[test]
#[cfg_attr(miri, ignore = "compresses 64 MiB")]
fn a_bomb_is_refused_by_its_ratio() {
    let zeroes = vec![b' '; 64 << 20];
    let image = fatbin(&[entry(1, 75, ZSTD, &zeroes, None)]);
    let error = select(&image, 90).unwrap_err();
    assert!(
        matches!(error, ImageError::Damaged(Damage::TooLarge { .. })),
        "{error}"
    );
}

/// A few cases for Miri, which has no files to keep failures in.
fn config() -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig {
            cases: 2,
            failure_persistence: None,
            ..ProptestConfig::default()
        }
    } else {
        ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn damaged_fatbins_never_panic(
        form in 0..4_usize,
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        length in any::<prop::sample::Index>(),
        device in 0..200_u32,
    ) {
        let mut image = match form {
            0 => SCALE.to_vec(),
            1 => fatbin(&[ptx(75, LZ4), ptx(80, LZ4)]),
            2 => fatbin(&[ptx(75, PLAIN), elf(90)]),
            _ => [fatbin(&[ptx(75, ZSTD)]), fatbin(&[ptx(80, LZ4)])].concat(),
        };
        for (at, value) in damage {
            let at = at.index(image.len());
            image[at] = value;
        }
        // As often whole as cut.
        let length = length.index(2 * image.len());
        image.truncate(length);
        let _ = select(&image, device);
    }

    #[test]
    fn what_is_written_is_read_back(
        files in proptest::collection::vec((1..200_u32, 0..3_usize, "[ -~]{0,300}"), 0..6),
    ) {
        let body = |(arch, way, comment): &(u32, usize, String)| {
            let text = format!("{}//{comment}", text(&arch.to_string()));
            (*arch, [PLAIN, LZ4, ZSTD][*way], text)
        };
        let files: Vec<_> = files.iter().map(body).collect();
        let made = files.iter().map(|(arch, flags, text)| {
            entry(1, *arch, *flags, text.as_bytes(), None)
        });
        let image = fatbin(&made.collect::<Vec<_>>());
        let read: Vec<_> = entries(&image).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(read.len(), files.len());
        for (entry, (arch, flags, text)) in read.iter().zip(&files) {
            prop_assert_eq!((entry.arch, entry.flags), (*arch, *flags));
            let payload = entry.payload(&Limits::default()).unwrap();
            // What is not compressed keeps its padding.
            prop_assert_eq!(&payload[..text.len()], text.as_bytes());
        }
    }
}
