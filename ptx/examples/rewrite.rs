//! Rewrites a file's managed variables, and the calls of functions: `rewrite FILE [PRELUDE] [FROM TO
//! DEFINITION]…`, where prelude and definitions are files. Prints the text.

use std::{env, fs, process::ExitCode};

use ptx::rewrite::{Redirect, rewrite};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let read = |at: usize| {
        arguments
            .get(at)
            .and_then(|path| fs::read_to_string(path).ok())
    };
    let Some(source) = read(0) else {
        eprintln!("rewrite FILE [PRELUDE] [FROM TO DEFINITION]...");
        return ExitCode::FAILURE;
    };
    let prelude = read(1).unwrap_or_default();
    let calls = arguments.get(2..).unwrap_or_default().chunks_exact(3);
    let definitions: Vec<String> = calls
        .clone()
        .filter_map(|call| fs::read_to_string(&call[2]).ok())
        .collect();
    let redirects: Vec<Redirect<'_>> = calls
        .zip(&definitions)
        .map(|(call, definition)| Redirect {
            from: &call[0],
            to: &call[1],
            definition,
            keep: call[0] == "__assertfail",
        })
        .collect();
    match rewrite(&source, &prelude, &redirects, ptx::Budget::default()) {
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
