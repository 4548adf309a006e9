//! Images that are damaged, foreign or beyond what is built: the right error, and a log that says why.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use tests::daemon::Daemon;

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
