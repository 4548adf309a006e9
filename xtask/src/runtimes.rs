//! `cargo xtask runtimes`: one program on CUDA's runtimes of every release from 11.8 to 13.5.
//!
//! NVIDIA publishes old runtimes as wheels without their compilers. So the host's compiler builds
//! `tests/runtimes/every.cpp` against each runtime, and the program registers its kernels by hand.
//!
//! Called by `main` and by `corpus`, which also runs its own programs on the newest. Must not know kernels: the
//! program brings them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::daemon::Daemon;
use crate::shell::{end_within, root, run};
use crate::toolkit::{RUNTIMES, Runtime, Toolkit};

/// What a program may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Builds and runs the program with all runtimes.
pub fn runtimes() -> Result<()> {
    let toolkit = Toolkit::install()?;
    let folder = root().join("target/runtimes");
    std::fs::create_dir_all(&folder)?;
    let image = folder.join("kernels.fatbin");
    run(Command::new(toolkit.nvcc())
        .args(["-fatbin", "-gencode", "arch=compute_75,code=compute_75"])
        .arg("-o")
        .args([&image, &root().join("tests/runtimes/kernels.cu")]))?;
    let mut daemon = Daemon::start()?;
    let mut failed = 0;
    for runtime in &RUNTIMES {
        runtime.install()?;
        for library in runtime.cudart() {
            let kind = match library.extension() {
                Some(extension) if extension == "a" => "static",
                _ => "shared",
            };
            let program = folder.join(format!("every-{}-{kind}", runtime.version));
            build(&toolkit, runtime, &library, &image, &program)?;
            let start = Instant::now();
            // Left to exit, and reset before it.
            let result = run_one(&mut daemon, runtime, &program, &[])
                .and_then(|()| run_one(&mut daemon, runtime, &program, &["reset"]));
            let took = start.elapsed().as_secs_f32();
            let name = format!("runtime {} {kind}", runtime.version);
            match result {
                Ok(()) => println!("{name:24} {took:7.2} s  pass"),
                Err(error) => {
                    failed += 1;
                    println!("{name:24} {took:7.2} s  FAIL: {error:#}");
                }
            }
        }
    }
    ensure!(failed == 0, "the program failed with {failed} runtimes");
    Ok(())
}

fn build(
    toolkit: &Toolkit,
    runtime: &Runtime,
    library: &Path,
    image: &Path,
    program: &Path,
) -> Result<()> {
    let output = Command::new("c++")
        .args(["-std=c++17", "-O1", "-w", "-isystem"])
        .arg(runtime.headers())
        // The wheels of 11 and 12 lack crt/, which says nothing of a version that matters here.
        .arg("-isystem")
        .arg(toolkit.headers())
        .arg(format!("-DIMAGE=\"{}\"", image.display()))
        .arg(root().join("tests/runtimes/every.cpp"))
        .arg("-o")
        .args([program, library])
        .args(["-lpthread", "-ldl", "-lrt"])
        .output()
        .context("cannot run c++")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}: {said}", program.display());
    Ok(())
}

fn run_one(
    daemon: &mut Daemon,
    runtime: &Runtime,
    program: &Path,
    arguments: &[&str],
) -> Result<()> {
    let mut child = daemon
        .client(program)?
        .args(arguments)
        .env("LD_LIBRARY_PATH", runtime.libraries())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start it")?;
    // It prints one line, which the pipe holds until it has ended.
    let Some(status) = end_within(&mut child, LIMIT)? else {
        bail!("no end within {} s", LIMIT.as_secs());
    };
    let printed = String::from_utf8_lossy(&child.wait_with_output()?.stdout).into_owned();
    ensure!(
        status.success() && printed == "PASS\n",
        "{status}: {printed}{}",
        arguments.join(" ")
    );
    Ok(())
}

/// The folder of the newest runtime's libraries, which programs of CUDA 13.0 load too.
pub fn newest() -> Result<PathBuf> {
    let runtime = RUNTIMES.last().context("there are runtimes")?;
    runtime.install()?;
    Ok(runtime.libraries())
}
