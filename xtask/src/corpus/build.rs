//! Compiling the corpus with nvcc, once for each content, and packing it for another machine.
//!
//! Called by `corpus`. Must not know what a program prints or needs when it runs.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::Cudart;
use super::program::Program;
use crate::shell::{cargo, root, run};
use crate::toolkit::Toolkit;

/// PTX alone: it is what the software GPU runs, and NVIDIA's driver compiles it too.
const TARGET: [&str; 2] = ["-gencode", "arch=compute_75,code=compute_75"];

/// What runs a packed corpus where there is no cargo.
const SCRIPT: &str = include_str!("run-all.sh");

/// A compiler set up for one way of linking.
#[derive(Debug)]
pub struct Builder {
    nvcc: PathBuf,
    cudart: Cudart,
    /// Text of what all programs include.
    header: String,
    /// Text of what those include that call the driver.
    driver_header: String,
    folder: PathBuf,
}

impl Builder {
    pub fn new(toolkit: &Toolkit, cudart: Cudart, sources: &Path) -> Result<Self> {
        let folder = root().join("target/corpus").join(cudart.name());
        fs::create_dir_all(&folder)?;
        Ok(Self {
            nvcc: toolkit.nvcc(),
            cudart,
            header: fs::read_to_string(sources.join("check.h"))?,
            driver_header: fs::read_to_string(sources.join("driver.h"))?,
            folder,
        })
    }

    /// Builds all programs, some at a time; for each the executable's path or what nvcc said.
    pub fn build_all(&self, programs: &[Program], jobs: usize) -> Vec<Result<PathBuf>> {
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..jobs.max(1) {
                scope.spawn(|| {
                    // Relaxed: the counter only deals out numbers; the mutex orders the results.
                    while let Some((number, program)) = {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        programs.get(number).map(|program| (number, program))
                    } {
                        let result = self.build(program);
                        let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                        results.push((number, result));
                    }
                });
            }
        });
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_by_key(|(number, _)| *number);
        results.into_iter().map(|(_, result)| result).collect()
    }

    fn build(&self, program: &Program) -> Result<PathBuf> {
        let mut options = vec!["-cudart".to_owned(), self.cudart.name().to_owned()];
        if !program.flags.iter().any(|flag| flag == "-gencode") {
            options.extend(TARGET.map(str::to_owned));
        }
        options.extend(program.flags.iter().cloned());
        let mut hasher = DefaultHasher::new();
        let source = fs::read_to_string(&program.source)?;
        for part in &program.parts {
            fs::read_to_string(part)?.hash(&mut hasher);
        }
        let included = source
            .lines()
            .filter_map(|line| line.strip_prefix("#include \"parts/")?.strip_suffix('"'));
        for header in included {
            let header = program.source.with_file_name("parts").join(header);
            fs::read_to_string(header)?.hash(&mut hasher);
        }
        if source.contains("driver.h") {
            self.driver_header.hash(&mut hasher);
        }
        (source, &self.header, &options, &self.nvcc).hash(&mut hasher);
        let path = self.folder.join(&program.name);
        let (mark, content) = (path.with_extension("content"), hasher.finish().to_string());
        if path.exists() && fs::read_to_string(&mark).is_ok_and(|mark| mark == content) {
            return Ok(path);
        }
        let start = Instant::now();
        let output = Command::new("nice")
            .arg(&self.nvcc)
            .args(&options)
            .arg("-o")
            .arg(&path)
            .arg(&program.source)
            .args(&program.parts)
            .output()
            .context("cannot run nvcc")?;
        if !output.status.success() {
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text).into_owned();
            let first = text.lines().find(|line| line.contains("error"));
            bail!("{}", first.or(text.lines().next()).unwrap_or("nvcc failed"));
        }
        fs::write(mark, content)?;
        let took = start.elapsed().as_secs_f32();
        println!("built {} in {took:.1} s", program.name);
        Ok(path)
    }
}

fn strip(program: &Path, to: &Path) -> Result<()> {
    run(Command::new("strip").arg("-o").args([to, program]))
}

/// Copies what was built to a folder, stripped, with `openmps`, a list and a script that runs all.
pub fn pack(
    programs: &[Program],
    built: &[Result<PathBuf>],
    toolkit: &Toolkit,
    cudart: Cudart,
    out: &Path,
) -> Result<()> {
    fs::create_dir_all(out)?;
    run(cargo().args(["build", "--release", "--package", "openmps"]))?;
    strip(&root().join("target/release/openmps"), &out.join("openmps"))?;
    let mut list = String::new();
    for (program, path) in programs.iter().zip(built) {
        let Ok(path) = path else { continue };
        strip(path, &out.join(&program.name))?;
        let environment: Vec<String> = program
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        list += &format!(
            "{}|{}|{}|{}\n",
            program.name,
            program.needs.join(" "),
            program.limit.as_secs(),
            environment.join(" ")
        );
    }
    fs::write(out.join("programs.txt"), list)?;
    let script = out.join("run-all.sh");
    fs::write(&script, SCRIPT)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    if cudart == Cudart::Shared {
        let library = "libcudart.so.13";
        fs::copy(toolkit.libraries().join(library), out.join(library))?;
    }
    println!("xtask: packed into {}", out.display());
    Ok(())
}
