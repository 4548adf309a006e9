//! `cargo xtask mpi`: CUDA programs with MPI, four ranks of each under one daemon.
//!
//! They are in `tests/mpi`. OpenMPI is the machine's own where `mpicxx` and `mpirun` are installed;
//! else Debian's packages are unpacked into `target/`, which takes no root.
//!
//! Called by `main` and `ci`. Must not know what a program computes: it checks itself.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::daemon::Daemon;
use crate::fetch::DescribedFolder;
use crate::shell::{end_within, root, run};
use crate::toolkit::Toolkit;

/// Debian's packages of OpenMPI.
const PACKAGES: [&str; 2] = ["openmpi-bin", "libopenmpi-dev"];

/// Ranks of each program.
const RANKS: &str = "4";

/// What a program may take.
const LIMIT: Duration = Duration::from_secs(120);

/// For tests as root on two cores, without the networks that Debian's OpenMPI looks for.
const ENVIRONMENT: [(&str, &str); 6] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_mca_base_component_show_load_errors", "0"),
    ("OMPI_MCA_pml", "ob1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("PMIX_MCA_pcompress_base_silence_warning", "1"),
];

/// Builds and runs all programs.
pub fn mpi() -> Result<()> {
    let openmpi = OpenMpi::find_or_unpack()?;
    let toolkit = Toolkit::install()?;
    let mut sources: Vec<PathBuf> = fs::read_dir(root().join("tests/mpi"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|it| it == "cu"))
        .collect();
    sources.sort();
    let folder = root().join("target/mpi");
    fs::create_dir_all(&folder)?;
    let mut daemon = Daemon::start()?;
    for source in &sources {
        let name = source.file_stem().unwrap_or_default().to_string_lossy();
        let program = folder.join(name.as_ref());
        run(openmpi
            .set_up(&mut Command::new(toolkit.nvcc()))
            .args(["-gencode", "arch=compute_75,code=compute_75", "-ccbin"])
            .arg(&openmpi.compiler)
            .arg("-o")
            .args([&program, source]))?;
        let start = Instant::now();
        run_one(&mut daemon, &openmpi, &program).with_context(|| name.clone().into_owned())?;
        let took = start.elapsed().as_secs_f32();
        println!("{name:24} {took:7.2} s  pass, {RANKS} ranks");
    }
    let servers = daemon.servers()?;
    ensure!(servers == 1, "the ranks were on {servers} servers");
    let heat = folder.join("heat");
    let start = Instant::now();
    record(&mut daemon, &openmpi, &heat).context("a time line of each rank")?;
    let took = start.elapsed().as_secs_f32();
    println!(
        "{:24} {took:7.2} s  pass, {RANKS} ranks",
        "trace --all-processes"
    );
    Ok(())
}

/// The classic: `openmps trace --all-processes -o output.%p` while four ranks run, which know nothing of it; a file of each, and
/// one of all.
fn record(daemon: &mut Daemon, openmpi: &OpenMpi, program: &Path) -> Result<()> {
    let folder = program.with_extension("trace");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir(&folder)?;
    let said = folder.join("said");
    let mut recorder = daemon
        .tool(&["trace", "--all-processes", "-o", "output.%p"])
        .current_dir(&folder)
        .stderr(File::create(&said)?)
        .spawn()
        .context("cannot start openmps trace")?;
    run_one(daemon, openmpi, program)?;
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&recorder),
        rustix::process::Signal::INT,
    )?;
    let ended = end_within(&mut recorder, LIMIT)?.context("openmps trace does not end")?;
    let said = fs::read_to_string(&said)?;
    ensure!(ended.success(), "{ended}: {said}");
    ensure!(!said.contains("missing"), "{said}");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some())
        .collect();
    files.sort();
    ensure!(files.len().to_string() == RANKS, "{files:?}\n{said}");
    let mut steps = Vec::new();
    for file in &files {
        let kernels = count(file, "kernel", |_| true)?;
        ensure!(kernels > 0, "{} has no kernel", file.display());
        ensure!(count(file, "cuda_driver", |_| true)? > 0, "and no call");
        let unnamed = count(file, "kernel", |name| name == "kernel")?;
        ensure!(unnamed == 0, "{unnamed} kernels have no name");
        steps.push(kernels);
    }
    ensure!(
        steps.iter().all(|count| *count == steps[0]),
        "each rank launches as often: {steps:?}"
    );
    let all = folder.join("all.json");
    run(daemon
        .tool(&["trace", "merge", "-o"])
        .arg(&all)
        .args(&files))?;
    let merged = count(&all, "kernel", |_| true)?;
    ensure!(
        merged == steps.iter().sum::<usize>(),
        "{merged} kernels in all: {steps:?}"
    );
    Ok(())
}

/// How many events of a category and a name a time line has.
fn count(file: &Path, category: &str, name: impl Fn(&str) -> bool) -> Result<usize> {
    let all: serde_json::Value = serde_json::from_slice(&fs::read(file)?)?;
    let events = all["traceEvents"].as_array().context("no time line")?;
    let of_it = events
        .iter()
        .filter(|event| event["cat"] == category && event["name"].as_str().is_some_and(&name));
    Ok(of_it.count())
}

fn run_one(daemon: &mut Daemon, openmpi: &OpenMpi, program: &Path) -> Result<()> {
    let (out, err) = (program.with_extension("out"), program.with_extension("err"));
    let mut command = Command::new(&openmpi.starter);
    command.args(["-np", RANKS]);
    // `openmps run -- program` in each rank, which finds the daemon by its pipe directory.
    let client = daemon.client(program)?;
    command.arg(client.get_program()).args(client.get_args());
    command.envs(
        client
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let mut child = openmpi
        .set_up(&mut command)
        .envs(ENVIRONMENT)
        .stdin(Stdio::null())
        .stdout(File::create(&out)?)
        .stderr(File::create(&err)?)
        .spawn()
        .context("cannot start mpirun")?;
    let Some(status) = end_within(&mut child, LIMIT)? else {
        bail!("no end within {} s", LIMIT.as_secs());
    };
    let (printed, said) = (fs::read_to_string(&out)?, fs::read_to_string(&err)?);
    let last = printed.lines().last().unwrap_or_default();
    ensure!(
        status.success() && last == "PASS",
        "{status}: {last}\n{said}"
    );
    Ok(())
}

/// An MPI: its compiler wrapper, what starts ranks, and where it lies if it is not installed.
#[derive(Debug)]
struct OpenMpi {
    compiler: PathBuf,
    starter: PathBuf,
    unpacked: Option<PathBuf>,
}

impl OpenMpi {
    fn find_or_unpack() -> Result<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let installed = |name: &str| {
            std::env::split_paths(&path)
                .map(|folder| folder.join(name))
                .find(|program| program.exists())
        };
        if let (Some(compiler), Some(starter)) = (installed("mpicxx"), installed("mpirun")) {
            return Ok(Self {
                compiler,
                starter,
                unpacked: None,
            });
        }
        let kept = DescribedFolder::new("openmpi", PACKAGES.join(" "));
        let tree = kept.get(unpack).context(
            "no mpicxx and mpirun here, and Debian's packages cannot be unpacked; \
             install openmpi-bin and libopenmpi-dev",
        )?;
        Ok(Self {
            compiler: tree.join("usr/bin/mpicxx.openmpi"),
            starter: tree.join("usr/bin/mpirun.openmpi"),
            unpacked: Some(tree),
        })
    }

    /// Lets a command find what lies in an unpacked OpenMPI.
    fn set_up<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let Some(place) = &self.unpacked else {
            return command;
        };
        // As Debian's own loader has them; its libraries' names say the architecture.
        let folders = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
        let libraries: Vec<_> = folders.iter().map(|folder| place.join(folder)).collect();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut programs = vec![place.join("usr/bin")];
        programs.extend(std::env::split_paths(&path));
        let joined = |paths: &[PathBuf]| std::env::join_paths(paths).unwrap_or_default();
        command
            .env("OPAL_PREFIX", place.join("usr"))
            .env("LD_LIBRARY_PATH", joined(&libraries))
            .env("PATH", joined(&programs))
    }
}

/// Debian's packages of OpenMPI, and of what it needs that this machine lacks, unpacked in a folder.
fn unpack(tree: &Path) -> Result<()> {
    let work = tree.join("work");
    let cache = work.join("cache");
    fs::create_dir_all(cache.join("archives/partial"))?;
    if let Err(error) = download(&cache, None) {
        // Perhaps this machine has no lists of packages yet: fetch them into a folder of ours.
        println!("xtask: {error:#}; trying again with fresh lists");
        let lists = work.join("lists");
        fs::create_dir_all(lists.join("partial"))?;
        run(apt(&cache, Some(&lists)).args(["update", "-qq"]))?;
        download(&cache, Some(&lists))?;
    }
    for entry in fs::read_dir(cache.join("archives"))? {
        let package = entry?.path();
        if package.extension().is_some_and(|it| it == "deb") {
            let status = Command::new("dpkg-deb")
                .arg("--extract")
                .arg(&package)
                .arg(tree)
                .status()
                .context("cannot run dpkg-deb")?;
            ensure!(status.success(), "{}: {status}", package.display());
        }
    }
    ensure!(
        tree.join("usr/bin/mpirun.openmpi").exists(),
        "the packages hold no mpirun"
    );
    Ok(fs::remove_dir_all(&work)?)
}

fn download(cache: &Path, lists: Option<&Path>) -> Result<()> {
    run(apt(cache, lists).args([
        "install",
        "--download-only",
        "--no-install-recommends",
        "--yes",
        "-qq",
        PACKAGES[0],
        PACKAGES[1],
    ]))
}

/// apt-get that keeps its files in folders of ours and asks for no lock of the system's.
fn apt(cache: &Path, lists: Option<&Path>) -> Command {
    let mut command = Command::new("apt-get");
    command
        .args([
            "-o",
            "Debug::NoLocking=1",
            "-o",
            "APT::Sandbox::User=",
            "-o",
        ])
        .arg(format!("Dir::Cache={}", cache.display()));
    if let Some(lists) = lists {
        command
            .arg("-o")
            .arg(format!("Dir::State::Lists={}", lists.display()));
    }
    command
}
