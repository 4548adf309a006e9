//! Rewrites a file's managed variables, and prints the text.

use std::{env, fs, process::ExitCode};

fn main() -> ExitCode {
    let Some(source) = env::args()
        .nth(1)
        .and_then(|path| fs::read_to_string(path).ok())
    else {
        eprintln!("rewrite FILE");
        return ExitCode::FAILURE;
    };
    match ptx::rewrite::rewrite(&source, &[]) {
        Ok(rewritten) => {
            print!("{}", rewritten.text);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
