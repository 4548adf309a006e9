//! `cargo xtask package`: a .deb and a Python wheel in `target/packages`.
//!
//! What is packaged runs with glibc 2.17: containers mount the libraries whatever their libc is. The
//! machine's own linker would bind it to the machine's libc, so the release is linked with zig's, which
//! has old ones; it comes from PyPI, and a package is all that it is needed for.
//!
//! Called by `main`, and by `platforms` for a .deb of the development build. Must not know where packages are
//! published.

mod reproduce;
mod sbom;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::development_build;
use crate::fetch::{Wheels, environment};
use crate::platforms::skip;
use crate::shell::{cargo, root, run};

/// The linker.
const ZIG: Wheels<'_> = Wheels {
    requirements: "ziglang==0.17.1 \
        --hash=sha256:ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54\n",
    limit: 300,
};

/// The library of the crate `nvrtc`, as cargo names it.
const AUDITOR: &str = "libopenmps_nvrtc.so";

/// The libc that the libraries must do with.
const FLOOR: Version = (2, 17);

type Version = (u32, u32);

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// From the development build, linked as it is: faster made, and bound to this machine's libc
    #[arg(long)]
    debug: bool,
    /// Make them again from a copy of the tree in another folder, and see that they are the same bytes
    #[arg(long, conflicts_with = "debug")]
    verify: bool,
}

/// What is packaged.
#[derive(Debug)]
struct Product {
    program: PathBuf,
    libraries: [Library; 2],
    /// What the loader audits programs with, so that NVRTC hands over PTX.
    auditor: PathBuf,
    version: String,
    /// The bill of materials, as text.
    bill: String,
    /// The libc that the program needs.
    libc: Version,
    /// How dpkg-deb packs it: what is only tried need not be small.
    packing: &'static [&'static str],
}

/// Both packages of the development build: what they hold and whether they work.
pub fn development() -> Result<()> {
    package(&Arguments {
        debug: true,
        verify: false,
    })
}

/// The libraries as they are packaged, alone: what they ask of glibc.
pub fn floor() -> Result<()> {
    let target = root().join("target/portable");
    let linker = match linker() {
        Ok(linker) => linker,
        Err(error) => return skip(format!("the linker is not to be had: {error:#}")),
    };
    let packages = [
        "--package",
        "client",
        "--package",
        "nvml",
        "--package",
        "nvrtc",
    ];
    run(portable(cargo().arg("build").args(packages), &linker)
        .arg("--target-dir")
        .arg(&target))?;
    let built = target.join("release");
    libraries(&built).iter().try_for_each(check_floor)?;
    // Not among those that programs load: the loader itself does, in what `openmps run` starts.
    check_floor(&(built.join(AUDITOR), AUDITOR, AUDITOR))
}

/// The libraries that programs load, where they are built, each with its name and the one to link against.
pub type Library = (PathBuf, &'static str, &'static str);

/// Those that a build has put into a folder.
pub fn libraries(folder: &Path) -> [Library; 2] {
    [
        (folder.join("libcuda.so"), "libcuda.so.1", "libcuda.so"),
        (
            folder.join("libnvidia_ml.so"),
            "libnvidia-ml.so.1",
            "libnvidia-ml.so",
        ),
    ]
}

fn check_floor((library, name, _): &Library) -> Result<()> {
    let needed = libc_of(library)?;
    println!("package: {name} needs glibc {}.{}", needed.0, needed.1);
    ensure!(
        needed <= FLOOR,
        "{name} must do with glibc {}.{}",
        FLOOR.0,
        FLOOR.1
    );
    Ok(())
}

/// A build for the packages: small, linked for an old libc, and without the names of this machine's folders.
fn portable<'a>(command: &'a mut Command, linker: &Path) -> &'a mut Command {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let folders = [(Some(root()), "openmps"), (home, "cargo")];
    let renamed: Vec<_> = folders
        .iter()
        .filter_map(|(folder, name)| {
            let folder = folder.as_ref()?.display();
            Some(format!("--remap-path-prefix={folder}={name}"))
        })
        .collect();
    command
        .env("CARGO_ENCODED_RUSTFLAGS", renamed.join("\x1f"))
        .args(["--release", "--config", "profile.release.debug=false"])
        .args(["--config", "profile.release.strip=true"])
        .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER", linker)
}

/// The .deb of the development build.
pub fn development_deb() -> Result<PathBuf> {
    debian(&build(true)?, &root().join("target/packages"))
}

/// Makes both packages and looks at them.
pub fn package(arguments: &Arguments) -> Result<()> {
    let product = build(arguments.debug)?;
    if !arguments.debug {
        product.libraries.iter().try_for_each(check_floor)?;
    }
    let folder = root().join("target/packages");
    fs::create_dir_all(&folder)?;
    let deb = debian(&product, &folder)?;
    let wheel = wheel(&product, &folder)?;
    try_wheel(&wheel)?;
    packed_again(&product, &deb)?;
    for made in [&deb, &wheel] {
        println!(
            "{}: {} MB",
            made.display(),
            fs::metadata(made)?.len() / 1_000_000
        );
    }
    if arguments.verify {
        reproduce::verify(&[deb, wheel], &epoch())?;
    }
    Ok(())
}

/// That the .deb comes out the same when it is packed again, from files that are younger.
fn packed_again(product: &Product, deb: &Path) -> Result<()> {
    let first = fs::read(deb)?;
    debian(product, &root().join("target/packages"))?;
    ensure!(
        fs::read(deb)? == first,
        "{} is not the same when it is packed again",
        deb.display()
    );
    Ok(())
}

/// The time that the packages' files say they are of, in seconds: what SOURCE_DATE_EPOCH asks for, or that of the
/// wheel's, the first day that its format knows.
fn epoch() -> String {
    std::env::var("SOURCE_DATE_EPOCH").unwrap_or_else(|_| "315532800".into())
}

fn build(debug: bool) -> Result<Product> {
    const WORDS: [&str; 4] = ["--package", "openmps", "--features", "kubernetes"];
    let target = root().join(if debug { "target" } else { "target/portable" });
    let mut program;
    if debug {
        program = development_build::program("openmps", &WORDS)?;
        // What debuggers read is nine tenths of it, and packing that takes minutes.
        let folder = root().join("target/packages");
        fs::create_dir_all(&folder)?;
        let stripped = folder.join("openmps");
        run(Command::new("strip").arg("-o").arg(&stripped).arg(&program))?;
        program = stripped;
    } else {
        let mut command = cargo();
        command.arg("build").args(WORDS);
        command.arg("--target-dir").arg(&target);
        run(portable(&mut command, &linker()?))?;
        program = target.join("release/openmps");
    }
    let embedded = target.join("embedded/release");
    let libraries = libraries(&embedded);
    let auditor = embedded.join(AUDITOR);
    let mut libc = libc_of(&program)?;
    for (library, ..) in &libraries {
        libc = libc.max(libc_of(library)?);
    }
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Ok(Product {
        libc,
        packing: if debug { &["-Zgzip", "-z1"] } else { &["-Zxz"] },
        program,
        libraries,
        auditor,
        bill: sbom::text(&version)?,
        version,
    })
}

/// A linker for an old libc: zig's compiler, with the words that it does not know taken out.
fn linker() -> Result<PathBuf> {
    let folder = ZIG.install("zig", |_| Ok(()))?;
    let zig = folder.join("ziglang/zig");
    let script = folder.join("cc");
    let text = format!(
        "#!/bin/sh\n\
         for word; do\n    \
             shift\n    \
             case $word in\n    \
             -lgcc_s | -lgcc_eh) word=-lunwind ;;\n    \
             -lgcc | -m64 | -Wl,--no-undefined-version) continue ;;\n    \
             esac\n    \
             set -- \"$@\" \"$word\"\n\
         done\n\
         exec '{}' cc -target x86_64-linux-gnu.{}.{} \"$@\"\n",
        zig.display(),
        FLOOR.0,
        FLOOR.1
    );
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(script)
}

/// The newest version of glibc that a file's symbols ask for.
fn libc_of(file: &Path) -> Result<Version> {
    let output = Command::new("objdump")
        .arg("-T")
        .arg(file)
        .output()
        .context("objdump")?;
    ensure!(
        output.status.success(),
        "objdump -T {}: {}",
        file.display(),
        output.status
    );
    newest(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("{} names no version of glibc", file.display()))
}

/// The newest version in a list of dynamic symbols. What a weak symbol would like does not count: where
/// it is not, the program does without.
fn newest(symbols: &str) -> Option<Version> {
    let strong = symbols.lines().filter(|line| line.contains("*UND*"));
    let versions = strong
        .filter(|line| line.as_bytes().get(18) != Some(&b'w'))
        .filter_map(|line| {
            let (_, rest) = line.split_once("GLIBC_")?;
            let text = rest.split([')', ' ']).next()?;
            let mut parts = text.split('.').map(str::parse);
            Some((parts.next()?.ok()?, parts.next()?.ok()?))
        });
    versions.max()
}

/// An empty folder under `target/packages`.
fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(fs::create_dir_all(folder)?)
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file has a folder")?)?;
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

/// A .deb: the program, the libraries in a folder of its own, units, completion, and what Slurm runs.
fn debian(product: &Product, folder: &Path) -> Result<PathBuf> {
    let tree = folder.join("deb");
    empty(&tree)?;
    put(&product.program, &tree.join("usr/bin/openmps"), 0o755)?;
    // Not in the loader's own folders: NVIDIA's driver has files of these names there.
    let place = tree.join("usr/lib/openmps");
    for (library, name, link) in &product.libraries {
        put(library, &place.join(name), 0o644)?;
        symlink(name, place.join(link))?;
    }
    // Under NVIDIA's names for who puts this folder on a wrapper's path.
    let names = tree.join("usr/lib/openmps/bin");
    fs::create_dir_all(&names)?;
    for name in [
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
        "nvidia-smi",
    ] {
        symlink("../../../bin/openmps", names.join(name))?;
    }
    // For Triton, by its whole path: on a path of programs it would hide the toolkit's.
    let tools = tree.join("usr/lib/openmps/tools");
    fs::create_dir_all(&tools)?;
    symlink("../../../bin/openmps", tools.join("ptxas"))?;
    // Likewise: the loader is told of it by its whole path.
    put(&product.auditor, &tools.join("libopenmps-nvrtc.so"), 0o644)?;
    let deploy = root().join("deploy");
    for (from, to) in [
        (
            "systemd/openmps.service",
            "lib/systemd/system/openmps.service",
        ),
        (
            "systemd/openmps.socket",
            "lib/systemd/system/openmps.socket",
        ),
        (
            "systemd/openmps-cloudpods.service",
            "lib/systemd/system/openmps-cloudpods.service",
        ),
        (
            "systemd/openmps.tmpfiles",
            "usr/lib/tmpfiles.d/openmps.conf",
        ),
        (
            "systemd/user/openmps.service",
            "usr/lib/systemd/user/openmps.service",
        ),
        (
            "systemd/user/openmps.socket",
            "usr/lib/systemd/user/openmps.socket",
        ),
    ] {
        put(&deploy.join(from), &tree.join(to), 0o644)?;
    }
    for (name, mode) in [
        ("common.sh", 0o644),
        ("prolog.sh", 0o755),
        ("epilog.sh", 0o755),
        ("task_prolog.sh", 0o755),
    ] {
        let to = tree.join("usr/share/openmps/slurm").join(name);
        put(&deploy.join("slurm").join(name), &to, mode)?;
    }
    for (shell, to) in [
        ("bash", "usr/share/bash-completion/completions/openmps"),
        ("zsh", "usr/share/zsh/vendor-completions/_openmps"),
        ("fish", "usr/share/fish/vendor_completions.d/openmps.fish"),
    ] {
        let output = Command::new(&product.program)
            .args(["completion", shell])
            .output()?;
        ensure!(
            output.status.success(),
            "openmps completion {shell}: {}",
            output.status
        );
        let to = tree.join(to);
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        fs::write(to, output.stdout)?;
    }
    let copyright = tree.join("usr/share/doc/openmps");
    put(
        &root().join("LICENSE-MIT"),
        &copyright.join("copyright"),
        0o644,
    )?;
    put(
        &root().join("CHANGELOG.md"),
        &copyright.join("CHANGELOG.md"),
        0o644,
    )?;
    fs::write(copyright.join("sbom.cdx.json"), &product.bill)?;
    let control = tree.join("DEBIAN");
    fs::create_dir_all(&control)?;
    fs::write(
        control.join("control"),
        format!(
            "Package: openmps\n\
             Version: {}\n\
             Architecture: amd64\n\
             Maintainer: OpenMPS <openmps@localhost>\n\
             Section: utils\n\
             Priority: optional\n\
             Depends: libc6 (>= {}.{}), libgcc-s1 | libgcc1\n\
             Description: many processes, one GPU\n \
             An open implementation of CUDA's Multi-Process Service: a control daemon, a server,\n \
             a client library, and a software GPU where there is none.\n",
            product.version, product.libc.0, product.libc.1
        ),
    )?;
    for name in ["postinst", "prerm", "postrm"] {
        put(
            &deploy.join("packages").join(name),
            &control.join(name),
            0o755,
        )?;
    }
    let deb = folder.join(format!("openmps_{}_amd64.deb", product.version));
    run(Command::new("dpkg-deb")
        .args(product.packing)
        // With several threads, xz makes other blocks on other machines.
        .args(["--threads-max=1", "--build", "--root-owner-group"])
        .env("SOURCE_DATE_EPOCH", epoch())
        .arg(&tree)
        .arg(&deb))?;
    Ok(deb)
}

/// A wheel: the program, which carries the libraries inside, as pip puts programs on the path.
fn wheel(product: &Product, folder: &Path) -> Result<PathBuf> {
    let tree = folder.join("wheel");
    empty(&tree)?;
    let name = format!("openmps-{}", product.version);
    put(
        &product.program,
        &tree.join(format!("{name}.data/scripts/openmps")),
        0o755,
    )?;
    let facts = tree.join(format!("{name}.dist-info"));
    fs::create_dir_all(&facts)?;
    let tag = format!(
        "py3-none-manylinux_{}_{}_x86_64",
        product.libc.0, product.libc.1
    );
    fs::write(
        facts.join("METADATA"),
        format!(
            "Metadata-Version: 2.1\nName: openmps\nVersion: {}\n\
             Summary: many processes, one GPU: an open implementation of CUDA's Multi-Process Service\n\
             License: MIT OR Apache-2.0\n\nopenmps run -- python train.py\n",
            product.version
        ),
    )?;
    fs::write(
        facts.join("WHEEL"),
        format!("Wheel-Version: 1.0\nGenerator: xtask\nRoot-Is-Purelib: false\nTag: {tag}\n"),
    )?;
    // Where PEP 770 has them.
    let bills = facts.join("sboms");
    fs::create_dir_all(&bills)?;
    fs::write(bills.join("openmps.cdx.json"), &product.bill)?;
    let wheel = folder.join(format!("{name}-{tag}.whl"));
    run(Command::new("python3")
        .args(["-c", include_str!("package/wheel.py")])
        .args([&tree, &wheel]))?;
    Ok(wheel)
}

/// Installs the wheel into an environment of its own, and runs Python under it.
fn try_wheel(wheel: &Path) -> Result<()> {
    let place = root().join("target/packages/venv");
    empty(&place)?;
    let python = environment(&place)?;
    run(Command::new("python3")
        .args(["-m", "pip", "--python"])
        .arg(&python)
        .args([
            "install",
            "--quiet",
            "--root-user-action=ignore",
            "--no-index",
        ])
        .arg(wheel))?;
    let output = Command::new(place.join("bin/openmps"))
        .args(["run", "--"])
        .arg(&python)
        .arg(root().join("tests/platforms/wheel.py"))
        .env("OPENMPS_ENGINE", "soft")
        .env_remove("CUDA_MPS_PIPE_DIRECTORY")
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || text.trim() != "twice" {
        bail!(
            "openmps run -- python: {}\n{text}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    println!("package: after pip install, `openmps run -- python` runs a kernel");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_found_among_strong_symbols() {
        let text = "\
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.2.5) free
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.17) clock_gettime
0000000000000000  w   DF *UND*\t0000000000000000 (GLIBC_2.28) statx
0000000000000000  w   D  *UND*\t0000000000000000  Base        __gmon_start__
0000000000012340 g    DF .text\t0000000000000010  Base        cuInit
";
        assert_eq!(newest(text), Some((2, 17)));
        assert_eq!(newest(""), None);
    }
}
