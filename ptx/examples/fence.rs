//! Puts fences into a file of PTX: `fence FILE [provided]`. Prints the text; with `provided` the functions that it only
//! declares may be called.

use std::{env, fs, process::ExitCode};

use ptx::fence::{Windows, fence};

/// Every address is inside.
const ALL: Windows = Windows {
    base: 0,
    size: !127,
    table: 0,
    count: 0,
    record: 0,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let source = arguments
        .first()
        .and_then(|path| fs::read_to_string(path).ok());
    let Some(source) = source else {
        eprintln!("fence FILE [provided]");
        return ExitCode::FAILURE;
    };
    let provided = arguments.len() > 1;
    match fence(&source, &ALL, &|_| provided, ptx::Budget::default()) {
        Ok(fenced) => {
            print!("{}", fenced.text);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
