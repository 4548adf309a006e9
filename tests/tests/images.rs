//! Images that are damaged, foreign or beyond what is built: the right error, and a log that says why.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use tests::daemon::{Daemon, eventually, succeed};

const KERNELS: &str = include_str!("../kernels/kernels.ptx");

/// CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_INVALID_PTX,
/// CUDA_ERROR_UNSUPPORTED_PTX_VERSION
const INVALID_IMAGE: u32 = 200;
const NO_BINARY_FOR_GPU: u32 = 209;
const INVALID_PTX: u32 = 218;
const UNSUPPORTED_PTX_VERSION: u32 = 222;

/// What loading an image gives: the log and the last line.
fn load(daemon: &Daemon, image: &[u8]) -> (String, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), image).unwrap();
    let output = daemon
        .probe(&["image", file.path().to_str().unwrap()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned();
    let (log, last) = text.rsplit_once('\n').unwrap_or(("", &text));
    (log.to_owned(), last.to_owned())
}

fn fails_with(daemon: &Daemon, image: &[u8], codes: &[u32]) -> String {
    let (log, last) = load(daemon, image);
    let code = last
        .strip_prefix("error ")
        .and_then(|code| code.parse().ok());
    assert!(
        code.is_some_and(|code| codes.contains(&code)),
        "{last}, not {codes:?}; log: {log}"
    );
    log
}

#[test]
fn ptx_is_loaded_or_refused_with_the_line() {
    let daemon = Daemon::start();
    assert_eq!(load(&daemon, KERNELS.as_bytes()).1, "ok");
    // Cut off anywhere.
    for part in 1..12 {
        let end = KERNELS.len() * part / 12;
        let (_, last) = load(&daemon, &KERNELS.as_bytes()[..end]);
        assert!(
            ["ok", "error 218", "error 200"].contains(&&*last),
            "cut at {end}: {last}"
        );
    }
    let line = KERNELS
        .lines()
        .position(|line| line.contains("atom.global.add"))
        .unwrap()
        + 1;
    let strange = KERNELS.replacen("atom.global.add", "tcgen05.mma.add", 1);
    let log = fails_with(&daemon, strange.as_bytes(), &[INVALID_PTX]);
    assert!(
        log.contains("tcgen05.mma"),
        "the log names the instruction: {log}"
    );
    assert!(
        log.contains(&format!("line {line}")),
        "the log names line {line}: {log}"
    );
    let future = KERNELS.replacen(".version 9.0", ".version 99.0", 1);
    fails_with(
        &daemon,
        future.as_bytes(),
        &[UNSUPPORTED_PTX_VERSION, INVALID_PTX],
    );
}

#[test]
fn what_is_no_image_is_refused() {
    let daemon = Daemon::start();
    for image in [
        &b"hello"[..],
        &[0xFF; 64],
        b"\x01\x02\x03\x04\x05\x06\x07\x08 more",
    ] {
        fails_with(&daemon, image, &[INVALID_IMAGE, INVALID_PTX]);
    }
}

/// A fatbin of one entry; see the reference on fatbins for the layout.
fn fatbin(kind: u16, payload: &[u8], compressed: u32, flags: u64, whole: u64) -> Vec<u8> {
    let mut entry = Vec::new();
    entry.extend(kind.to_le_bytes());
    entry.extend(0x0101u16.to_le_bytes());
    entry.extend(64u32.to_le_bytes());
    entry.extend((payload.len() as u64).to_le_bytes());
    entry.extend(compressed.to_le_bytes());
    entry.extend(0u32.to_le_bytes());
    entry.extend(0u16.to_le_bytes());
    entry.extend(9u16.to_le_bytes());
    entry.extend(75u32.to_le_bytes());
    entry.extend(0u32.to_le_bytes());
    entry.extend(0u32.to_le_bytes());
    entry.extend((flags | 0x11).to_le_bytes());
    entry.extend(0u64.to_le_bytes());
    entry.extend(whole.to_le_bytes());
    entry.extend(payload);
    let mut image = 0xBA55_ED50u32.to_le_bytes().to_vec();
    image.extend(1u16.to_le_bytes());
    image.extend(16u16.to_le_bytes());
    image.extend((entry.len() as u64).to_le_bytes());
    image.extend(entry);
    image
}

#[test]
fn fatbins_are_loaded_or_refused() {
    let daemon = Daemon::start();
    let mut text = KERNELS.as_bytes().to_vec();
    text.resize(text.len().next_multiple_of(8), 0);
    assert_eq!(load(&daemon, &fatbin(1, &text, 0, 0, 0)).1, "ok");
    // Machine code alone: a software GPU needs PTX, and says so.
    let log = fails_with(
        &daemon,
        &fatbin(2, b"\x7fELF and more", 0, 0, 0),
        &[NO_BINARY_FOR_GPU],
    );
    assert!(log.contains("PTX"), "{log}");
    // Says it is compressed, and is not; claims to be enormous.
    let codes = [INVALID_IMAGE, INVALID_PTX];
    fails_with(
        &daemon,
        &fatbin(1, &text, text.len() as u32, 0x2000, 1 << 20),
        &codes,
    );
    fails_with(
        &daemon,
        &fatbin(1, &text, text.len() as u32, 0x8000, u64::MAX),
        &codes,
    );
    // Cut in the middle: zeroes follow.
    let image = fatbin(1, &text, 0, 0, 0);
    let (_, last) = load(&daemon, &image[..image.len() / 2]);
    assert!(["error 200", "error 218"].contains(&&*last), "{last}");
}

/// Deflated as LZ4 blocks are, all of it literal.
fn lz4(text: &[u8]) -> Vec<u8> {
    let mut block = vec![0xf0];
    let mut rest = text.len() - 15;
    while rest >= 255 {
        block.push(255);
        rest -= 255;
    }
    block.push(rest as u8);
    block.extend(text);
    block
}

/// A 64-bit ELF file for no machine, with one section.
fn elf() -> Vec<u8> {
    let mut image = vec![0; 64 + 2 * 64];
    image[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    image[40..48].copy_from_slice(&64_u64.to_le_bytes());
    image[58..62].copy_from_slice(&[64, 0, 2, 0]);
    image[64 + 64 + 4] = 1;
    image[64 + 64 + 24] = 64;
    image[64 + 64 + 32] = 128;
    image
}

#[test]
fn damaged_images_of_every_form_are_errors_and_nobody_elses() {
    // Written by nvcc: three entries, compressed with zstd.
    const ZSTD: &[u8] = include_bytes!("../../ptx/tests/data/scale.fatbin");
    let kernel = b".version 7.0\n.target sm_70\n.address_size 64\n.entry k() { ret; }\n\0\0";
    let packed = lz4(kernel);
    let (length, whole) = (packed.len() as u32, kernel.len() as u64);
    let mut padded = packed;
    padded.resize(padded.len().next_multiple_of(8), 0);
    let part = |bytes| protocol::linked_image::Part {
        kind: 3, // CU_JIT_INPUT_FATBINARY
        name: "part",
        bytes,
    };
    let plain = fatbin(1, kernel, 0, 0, 0);
    let forms = [
        ("text", kernel.to_vec()),
        ("plain", plain.clone()),
        ("lz4", fatbin(1, &padded, length, 0x2000, whole)),
        ("zstd", ZSTD.to_vec()),
        ("several", [ZSTD, &plain].concat()),
        (
            "linked",
            protocol::linked_image::encode([part(&plain), part(ZSTD)]),
        ),
        ("elf", elf()),
        ("code", fatbin(2, &elf(), 0, 0, 0)),
    ];
    let daemon = Daemon::start();
    assert_eq!(succeed(&mut daemon.probe(&["work", "1"])), "ok\n");
    let server = daemon.server();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for (form, image) in forms {
        let folder = tempfile::tempdir().unwrap();
        let put = |number: usize, image: &[u8]| {
            std::fs::write(folder.path().join(number.to_string()), image).unwrap();
        };
        put(0, &image);
        // Each byte of the headers, others by chance; and cut anywhere.
        let header = image.len().min(160);
        for number in 1..=header + 100 {
            let mut damaged = image.clone();
            for _ in 0..=random(3) {
                let at = if number <= header {
                    number - 1
                } else {
                    random(image.len())
                };
                damaged[at] ^= [1 << random(8), 0xff, 0x80][random(3)];
            }
            put(number, &damaged);
        }
        for number in 0..40 {
            put(1000 + number, &image[..random(image.len())]);
        }
        let mut program = daemon.command(env!("CARGO_BIN_EXE_images"));
        let text = succeed(program.arg(folder.path()));
        let counts: Vec<u32> = text
            .split([' ', '\n'])
            .filter_map(|word| word.parse().ok())
            .collect();
        let [loaded, refused] = counts[..] else {
            panic!("{form}: {text}");
        };
        assert_eq!(
            loaded > 0,
            !matches!(form, "elf" | "code"),
            "{form}: {text}"
        );
        assert!(refused > 100, "{form}: {text}");
        assert_eq!(daemon.server(), server, "the server lives");
    }
    eventually("all clients are gone", || daemon.clients().is_empty());
    assert_eq!(succeed(&mut daemon.probe(&["memory"])), "ok\n");
}
