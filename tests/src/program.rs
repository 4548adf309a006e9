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
