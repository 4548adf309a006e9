//! What takes ptxas' place where the device is the software GPU: a program of its command line that hands
//! PTX through as the image, after it has looked whether the software GPU could run it.
//!
//! Triton and torch.compile take a ptxas by TRITON_PTXAS_PATH, and load what it writes with
//! cuModuleLoadData, which takes PTX text as well as machine code.
//!
//! Called by `main` when the binary is called by that name. Must not know servers: it assembles by `engine-soft`
//! alone.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use engine_soft::{Assembled, CAPABILITIES, assemble};

/// What `--version` says beside the name: callers choose the version of PTX that they write by it, and the
/// driver that we are takes what CUDA 13.0 writes.
const RELEASE: &str = "Cuda compilation tools, release 13.0, V13.0.0";

/// Options that have a value, in the next argument or after `=`. What is not among these and begins with `-`
/// is a switch, and changes nothing.
const VALUED: [&str; 38] = [
    "--output-file",
    "-o",
    "--gpu-name",
    "-arch",
    "-gpu-name",
    "--maxrregcount",
    "-maxrregcount",
    "--device-function-maxrregcount",
    "-func-maxrregcount",
    "--machine",
    "-m",
    "--opt-level",
    "-opt-level",
    "-O",
    "--Ofast-compile",
    "-Ofc",
    "--entry",
    "-e",
    "--def-load-cache",
    "-dlcm",
    "--def-store-cache",
    "-dscm",
    "--force-load-cache",
    "-flcm",
    "--force-store-cache",
    "-fscm",
    "--input-as-string",
    "-ias",
    "--options-file",
    "-optf",
    "--split-compile",
    "-split-compile",
    "--fdevice-time-trace",
    "-fdevice-time-trace",
    "--fmad",
    "-fmad",
    "--tool-name",
    "-tool-name",
];

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    inputs: Vec<PathBuf>,
    text: Option<String>,
    output: Option<PathBuf>,
    architecture: Option<String>,
    max_registers: Option<u32>,
    verbose: bool,
    version: bool,
}

/// Runs as ptxas.
pub fn run(arguments: &[OsString]) -> ExitCode {
    match assemble_files(arguments) {
        Ok(printed) => {
            // Whoever does not read what is printed has the file all the same.
            let _ = std::io::stdout().write_all(printed.out.as_bytes());
            let _ = std::io::stderr().write_all(printed.err.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("ptxas fatal   : {error:#}");
            ExitCode::from(255)
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Printed {
    out: String,
    err: String,
}

fn assemble_files(arguments: &[OsString]) -> Result<Printed> {
    let options = parse_arguments(arguments)?;
    if options.version {
        return Ok(Printed {
            out: format!(
                "ptxas: NVIDIA (R) Ptx optimizing assembler's place, taken by OpenMPS {}\n{RELEASE}\n",
                env!("CARGO_PKG_VERSION")
            ),
            err: String::new(),
        });
    }
    let text = match (&options.text, options.inputs.as_slice()) {
        (Some(text), []) => text.clone().into_bytes(),
        (None, [input]) => std::fs::read(input).with_context(|| input.display().to_string())?,
        (None, []) => bail!("no input file; --help is in NVIDIA's documents"),
        _ => bail!("several inputs: the software GPU's ptxas takes one"),
    };
    let device = match &options.architecture {
        Some(name) => architecture(name)?,
        None => newest(),
    };
    let Assembled { notes, kernels } =
        assemble(&text, device, options.max_registers).map_err(|log| {
            anyhow!(
                "the software GPU of OpenMPS cannot run this PTX\n{}",
                log.trim_end()
            )
        })?;
    let mut image = text;
    // What loads it takes it for a string.
    if image.last() != Some(&0) {
        image.push(0);
    }
    let output = options.output.unwrap_or_else(|| "elf.o".into());
    std::fs::write(&output, image).with_context(|| output.display().to_string())?;
    let mut printed = Printed::default();
    let kernels = if options.verbose {
        kernels
    } else {
        String::new()
    };
    for line in notes.lines().chain(kernels.lines()) {
        printed.err.push_str("ptxas info    : ");
        printed.err.push_str(line.trim_start_matches("info: "));
        printed.err.push('\n');
    }
    Ok(printed)
}

fn newest() -> u32 {
    CAPABILITIES.into_iter().max().unwrap_or_default()
}

/// The number of an architecture such as sm_90a.
fn architecture(name: &str) -> Result<u32> {
    let digits = name
        .strip_prefix("sm_")
        .or_else(|| name.strip_prefix("compute_"));
    digits
        .map(|digits| digits.trim_end_matches(['a', 'f']))
        .and_then(|digits| digits.parse().ok())
        .with_context(|| format!("'{name}' is not an architecture"))
}

fn parse_arguments(arguments: &[OsString]) -> Result<Options> {
    let mut options = Options::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy();
        if !text.starts_with('-') || text == "-" {
            options.inputs.push(PathBuf::from(argument));
            continue;
        }
        let (name, joined) = match text.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(OsString::from(value))),
            None => (text.clone().into_owned(), None),
        };
        if !VALUED.contains(&&*name) {
            match &*name {
                "--version" | "-V" => options.version = true,
                "--verbose" | "-v" => options.verbose = true,
                _ => {}
            }
            continue;
        }
        let value = match joined {
            Some(value) => value,
            None => rest
                .next()
                .cloned()
                .with_context(|| format!("{name} wants a value"))?,
        };
        set_option(&mut options, &name, &value)?;
    }
    Ok(options)
}

fn set_option(options: &mut Options, name: &str, value: &OsStr) -> Result<()> {
    let text = || value.to_string_lossy().into_owned();
    match name {
        "--output-file" | "-o" => options.output = Some(Path::new(value).to_owned()),
        "--gpu-name" | "-gpu-name" | "-arch" => options.architecture = Some(text()),
        "--input-as-string" | "-ias" => options.text = Some(text()),
        "--maxrregcount" | "-maxrregcount" => {
            let number = text().parse();
            let number = number.map_err(|_| anyhow!("{name}: '{}' is not a number", text()))?;
            options.max_registers = Some(number);
        }
        // What a file of options would say is not known here.
        "--options-file" | "-optf" => bail!("{name} is not built"),
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = ".version 8.7\n.target sm_90a\n.address_size 64\n\
                       .visible .entry k() { bar.sync 0; ret; }\n";

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn the_command_line_is_ptxas() {
        let options = parse_arguments(&words(
            "-lineinfo -suppress-debug-info --fmad=false -v --opt-level 0 --gpu-name=sm_90a in.ptx -o out.cubin",
        ))
        .unwrap();
        assert_eq!(options.inputs, [PathBuf::from("in.ptx")]);
        assert_eq!(options.output, Some("out.cubin".into()));
        assert_eq!(options.architecture.as_deref(), Some("sm_90a"));
        assert!(options.verbose);
        let options =
            parse_arguments(&words("-arch sm_75 -m 64 -O3 -maxrregcount 40 a.ptx")).unwrap();
        assert_eq!(options.max_registers, Some(40));
        assert_eq!(options.inputs, [PathBuf::from("a.ptx")]);
        for bad in ["-o", "-maxrregcount many a.ptx", "-optf options a.ptx"] {
            assert!(parse_arguments(&words(bad)).is_err(), "{bad}");
        }
        assert!(architecture("sm_90a").is_ok_and(|number| number == 90));
        assert!(architecture("gfx90a").is_err());
    }

    #[test]
    fn its_version_is_told_as_triton_reads_it() {
        let printed = assemble_files(&words("--version")).unwrap();
        assert!(
            printed.out.contains("release 13.0, V13.0"),
            "{}",
            printed.out
        );
    }

    #[test]
    fn ptx_is_handed_through_or_refused_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let (input, output) = (folder.path().join("in.ptx"), folder.path().join("out"));
        let line = |arch: &str| {
            words(&format!(
                "-v --gpu-name={arch} {} -o {}",
                input.display(),
                output.display()
            ))
        };
        std::fs::write(&input, PTX).unwrap();
        let printed = assemble_files(&line("sm_90a")).unwrap();
        assert!(printed.err.contains("registers"), "{}", printed.err);
        assert_eq!(
            std::fs::read(&output).unwrap(),
            [PTX.as_bytes(), b"\0"].concat()
        );
        // What the device could not load is refused at once.
        assert!(assemble_files(&line("sm_80")).is_err());
        std::fs::write(&input, PTX.replace("bar.sync", "tcgen05.mma")).unwrap();
        let error = assemble_files(&line("sm_90a")).unwrap_err().to_string();
        assert!(
            error.contains("tcgen05.mma") && error.contains("line 4"),
            "{error}"
        );
        std::fs::remove_file(&input).unwrap();
        assert!(assemble_files(&line("sm_90a")).is_err());
    }
}
