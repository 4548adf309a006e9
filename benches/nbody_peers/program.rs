//! A peer in a process of its own that prints the lines of `examples/nbody`.
//!
//! Called by `main`. Must not know how the program calculates.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Enough for the program's own warm-up and event times to tell one step well.
const ITERATIONS: u32 = 3;

pub struct Program {
    name: String,
    words: Vec<String>,
}

impl Program {
    /// `NAME=COMMAND`, the command's words parted by blanks.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, command) = text
            .split_once('=')
            .context("--program needs NAME=COMMAND")?;
        let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        if name.is_empty() || words.is_empty() {
            bail!("--program needs NAME=COMMAND");
        }
        Ok(Self {
            name: name.to_owned(),
            words,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs the benchmark once.
    pub fn gigaflops(&self, bodies: usize) -> Result<f64> {
        let output = Command::new(&self.words[0])
            .args(&self.words[1..])
            .args(["-benchmark".to_owned(), format!("-numbodies={bodies}")])
            .arg(format!("-iterations={ITERATIONS}"))
            .stdin(Stdio::null())
            .output()
            .with_context(|| self.words[0].clone())?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!(
                "{}: {}",
                output.status,
                said.lines().next().unwrap_or("no message")
            );
        }
        let text = String::from_utf8_lossy(&output.stdout);
        gigaflops_in(&text).context("it printed no single-precision GFLOP/s")
    }
}

/// The figure of the line `= 333.9 single-precision GFLOP/s at 20 flops per interaction`.
fn gigaflops_in(output: &str) -> Option<f64> {
    output.lines().find_map(|line| {
        let (number, rest) = line.strip_prefix("= ")?.split_once(' ')?;
        let rest = rest.strip_prefix("single-precision GFLOP/s")?;
        rest.contains("at 20 flops").then(|| number.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_figure_among_the_lines() {
        let output = "14336 bodies, total time for 10 iterations: 123.062 ms\n\
                      = 16.701 billion interactions per second\n\
                      = 334.011 single-precision GFLOP/s at 20 flops per interaction\n";
        assert_eq!(gigaflops_in(output), Some(334.011));
        assert_eq!(
            gigaflops_in("= 16.701 billion interactions per second\n"),
            None
        );
    }

    #[test]
    fn a_program_has_a_name_and_words() {
        let program = Program::parse("soft GPU=openmps run -- nbody").expect("well formed");
        assert_eq!(program.name(), "soft GPU");
        assert_eq!(program.words, ["openmps", "run", "--", "nbody"]);
        assert!(Program::parse("nbody").is_err());
        assert!(Program::parse("=nbody").is_err());
    }

    #[test]
    fn failures_are_told() {
        let missing = Program::parse("x=/nonexistent/program").expect("well formed");
        assert!(missing.gigaflops(256).is_err());
        let failing = Program::parse("x=false").expect("well formed");
        assert!(failing.gigaflops(256).is_err());
    }
}
