//! `cargo xtask python`: CUDA programs in Python, run under OpenMPS.
//!
//! They and what they need are in `tests/python`. The packages go into a virtual environment under
//! `target/`: several of them look for CUDA's libraries in the environment's own folders alone. A
//! program's first line says what it needs of OpenMPS, in the words of the corpus (`# needs: plain`).
//!
//! Called by `main` and `ci`. Must not know what a program computes: it checks itself.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::corpus::BUILT;
use crate::daemon::Daemon;
use crate::fetch::Wheels;
use crate::shell::{end_within, root};
use crate::skipped;

/// What a program may take: the first imports of a cold machine, and NVRTC.
const LIMIT: Duration = Duration::from_secs(300);

/// What they run with.
const PACKAGES: Wheels<'_> = Wheels {
    requirements: include_str!("../../tests/python/requirements.txt"),
    limit: 900,
};

/// Makes CuPy hand over PTX, as docs/python.md explains.
const ENVIRONMENT: (&str, &str) = ("CUPY_COMPILE_WITH_PTX", "1");

/// Installs the packages and runs the programs whose name contains `filter`.
pub fn python(filter: &str) -> Result<()> {
    let folder = root().join("tests/python");
    let mut programs: Vec<PathBuf> = fs::read_dir(&folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|it| it == "py"))
        .filter(|path| name(path).contains(filter))
        .collect();
    programs.sort();
    ensure!(
        !programs.is_empty(),
        "no program has `{filter}` in its name"
    );

    let interpreter = PACKAGES.environment("python")?;
    let mut daemon = Daemon::start()?;
    let mut failed = 0;
    for program in &programs {
        let text = fs::read_to_string(program)?;
        let first = text.lines().next().unwrap_or_default();
        let needs = first.strip_prefix("# needs: ");
        let needs = needs.with_context(|| format!("{}: no `# needs: …`", name(program)))?;
        if let Some(missing) = needs.split_whitespace().find(|need| !BUILT.contains(need)) {
            println!("{:24}            skipped: needs {missing}", name(program));
            skipped::record(&name(program), &format!("needs {missing}"))?;
            continue;
        }
        let start = Instant::now();
        let result = run_one(&mut daemon, &interpreter, program);
        let took = start.elapsed().as_secs_f32();
        match result {
            Ok(()) => println!("{:24} {took:7.2} s  pass", name(program)),
            Err(error) => {
                failed += 1;
                println!("{:24} {took:7.2} s  FAIL: {error:#}", name(program));
            }
        }
    }
    ensure!(failed == 0, "{failed} Python programs failed");
    Ok(())
}

fn name(program: &Path) -> String {
    let name = program.file_stem().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn run_one(daemon: &mut Daemon, interpreter: &Path, program: &Path) -> Result<()> {
    let outputs = root().join("target/python/outputs");
    fs::create_dir_all(&outputs)?;
    let (out, err) = (
        outputs.join(name(program)),
        outputs.join(name(program) + ".err"),
    );
    let mut child = daemon
        .client(interpreter)?
        .arg(program)
        .env(ENVIRONMENT.0, ENVIRONMENT.1)
        .env("CUPY_CACHE_DIR", outputs.join("cupy"))
        .env("CUDA_CACHE_PATH", outputs.join("cuda"))
        .stdin(Stdio::null())
        .stdout(File::create(&out)?)
        .stderr(File::create(&err)?)
        .spawn()
        .context("cannot start it")?;
    let Some(status) = end_within(&mut child, LIMIT)? else {
        bail!("no end within {} s", LIMIT.as_secs());
    };
    let (printed, said) = (fs::read_to_string(&out)?, fs::read_to_string(&err)?);
    let last = printed.lines().last().unwrap_or_default();
    if !status.success() || last != "PASS" {
        bail!(
            "{status}: {last} {}",
            said.lines().last().unwrap_or_default()
        );
    }
    Ok(())
}
