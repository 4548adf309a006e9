//! For the build scripts of the libraries that run inside of other people's programs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// std asks for `libgcc_s.so.1`, which small containers do not have. Where the C compiler has the
/// same code as an archive, a linker script under the name that is asked for puts it in instead.
pub fn link(library: &str) {
    let Some(out) = std::env::var_os("OUT_DIR").map(PathBuf::from) else {
        return;
    };
    let linker = std::env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let archive = Command::new(linker)
        .arg("-print-file-name=libgcc_eh.a")
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map(|path| PathBuf::from(path.trim()))
        .filter(|path| path.is_absolute() && path.is_file());
    let Some(archive) = archive else {
        println!("cargo:warning=no libgcc_eh.a: {library} will need libgcc_s.so.1");
        return;
    };
    if write_script(&out, &archive).is_ok() {
        println!("cargo:rustc-link-search=native={}", out.display());
    }
}

fn write_script(out: &Path, archive: &Path) -> std::io::Result<()> {
    // The rest of libgcc is there anyway.
    let script = format!("INPUT({} -lgcc)\n", archive.display());
    std::fs::write(out.join("libgcc_s.so"), script)
}
