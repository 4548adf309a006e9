//! Parses the files named, and says how long each took or what is wrong with it.

use std::time::Instant;
use std::{env, fs, process::ExitCode};

fn main() -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for path in env::args().skip(1) {
        let Ok(bytes) = fs::read(&path) else {
            eprintln!("{path}: cannot read");
            code = ExitCode::FAILURE;
            continue;
        };
        let start = Instant::now();
        match ptx::parse_bytes(&bytes) {
            Ok(module) => {
                let instructions: usize = module
                    .functions
                    .iter()
                    .flat_map(|f| &f.body)
                    .map(Vec::len)
                    .sum();
                let functions = module.functions.len();
                let time = start.elapsed();
                println!("{path}: {functions} functions, {instructions} instructions, {time:.1?}");
            }
            Err(error) => {
                eprintln!("{path}: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
