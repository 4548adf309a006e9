//! How a test program speaks with the test that started it: a line at a time, over standard input and
//! output.
//!
//! Called by both sides. Must not know what is said.

use std::io::{BufRead, Write};

use crate::cuda::Code;

/// Says a line.
pub fn say(text: &str) {
    println!("{text}");
    std::io::stdout().flush().expect("somebody listens");
}

/// Waits for a line.
pub fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).expect("text");
    line.trim().to_owned()
}

/// Says how something ended that was asked for.
pub fn answer(result: Result<(), Code>) {
    match result {
        Ok(()) => say("ok"),
        Err(code) => say(&format!("error {code}")),
    }
}

/// Says how the program's task ended, and ends the program if it ended badly.
#[expect(clippy::exit, reason = "a program that fails says so by its status")]
pub fn finish(result: Result<(), Code>) {
    answer(result);
    if result.is_err() {
        std::process::exit(1);
    }
}

/// A handle of the driver's (`CUipcMemHandle` and the like) as a word.
#[must_use]
pub fn handle_to_text(handle: &[u8; 64]) -> String {
    handle.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A handle that was said as a word.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn handle_from_text(text: &str) -> [u8; 64] {
    let mut handle = [0; 64];
    for (at, byte) in handle.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("digits");
    }
    handle
}
