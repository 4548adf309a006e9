//! A program's source and what its first comment lines say about it.
//!
//! Read by the building and the running of the corpus. Runs nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Seconds that a program may take where it does not say otherwise: a software GPU in a debug-laden
/// test run on two busy cores is slow, an endless loop is endless.
const LIMIT: Duration = Duration::from_secs(60);

/// One program of the corpus.
#[derive(Debug)]
pub struct Program {
    /// The file's name without `.cu`.
    pub name: String,
    /// Where the source is.
    pub source: PathBuf,
    /// Features it uses, from `// needs:`.
    pub needs: Vec<String>,
    /// Further sources of the program, from `// with:`, beside it.
    pub parts: Vec<PathBuf>,
    /// More options for the compiler, from `// nvcc:`.
    pub flags: Vec<String>,
    /// Environment it runs in, from `// env:`, as NAME=VALUE.
    pub environment: Vec<(String, String)>,
    /// How many devices it wants to see, from `// devices:`.
    pub devices: u32,
    /// How long it may take, from `// seconds:`.
    pub limit: Duration,
}

impl Program {
    /// All programs of a folder whose name contains `filter`, in order of their names.
    pub fn all(folder: &Path, filter: &str) -> Result<Vec<Self>> {
        let mut programs = Vec::new();
        for entry in fs::read_dir(folder)? {
            let source = entry?.path();
            let name = source.file_stem().unwrap_or_default().to_string_lossy();
            if source.extension().is_some_and(|it| it == "cu") && name.contains(filter) {
                programs.push(Self::read(source).context("a program's header")?);
            }
        }
        programs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(programs)
    }

    fn read(source: PathBuf) -> Result<Self> {
        let text = fs::read_to_string(&source)?;
        let name = source.file_stem().unwrap_or_default().to_string_lossy();
        Self::parse(name.into_owned(), source, &text)
    }

    fn parse(name: String, source: PathBuf, text: &str) -> Result<Self> {
        let words = |key: &str| -> Vec<String> {
            text.lines()
                .take_while(|line| line.starts_with("//"))
                .filter_map(|line| {
                    line.strip_prefix("// ")?
                        .strip_prefix(key)?
                        .strip_prefix(':')
                })
                .flat_map(str::split_whitespace)
                .map(str::to_owned)
                .collect()
        };
        let needs = words("needs");
        ensure!(!needs.is_empty(), "{name}: no line `// needs: …`");
        let environment = words("env")
            .iter()
            .map(|word| match word.split_once('=') {
                Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
                None => Err(anyhow::anyhow!("{name}: `{word}` is not NAME=VALUE")),
            })
            .collect::<Result<_>>()?;
        let devices = match words("devices").first() {
            Some(word) => word.parse().with_context(|| name.clone())?,
            None => 1,
        };
        let limit = match words("seconds").first() {
            Some(word) => Duration::from_secs(word.parse().with_context(|| name.clone())?),
            None => LIMIT,
        };
        Ok(Self {
            needs,
            parts: words("with")
                .iter()
                .map(|part| source.with_file_name(part))
                .collect(),
            flags: words("nvcc"),
            environment,
            devices,
            limit,
            name,
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_lines_are_found_only_at_the_top() {
        let text = "// needs: plain sm_80\n// nvcc: -std=c++20 -O2\n// env: A=1 B=x=y\n\
                    // seconds: 5\n// devices: 2\n#include <x>\n// nvcc: -bad\n";
        let program = Program::parse("p".into(), "p.cu".into(), text).unwrap();
        assert_eq!(program.needs, ["plain", "sm_80"]);
        assert_eq!(program.flags, ["-std=c++20", "-O2"]);
        assert_eq!(program.environment[1], ("B".into(), "x=y".into()));
        assert_eq!(program.limit, Duration::from_secs(5));
        assert_eq!(program.devices, 2);
    }

    #[test]
    fn a_header_without_needs_is_an_error() {
        assert!(Program::parse("p".into(), "p.cu".into(), "// nothing\n").is_err());
    }
}
