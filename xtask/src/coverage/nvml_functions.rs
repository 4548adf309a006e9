//! `docs/nvml-functions.md`: where each function is answered, as text made from the table.
//!
//! A pure function of `cuda-abi`'s rows, called by `coverage`. Reads no file.

use cuda_abi::nvml::{Class, ROWS};

const HEAD: &str = "\
# Functions of libnvidia-ml.so.1

Made from the table in `cuda-abi/src/nvml/rows.rs`; do not edit. To make it again: `cargo xtask coverage`.
[nvml.md](nvml.md) says what the classes mean.

";

const CLASSES: [(Class, &str); 4] = [
    (Class::View, "from what the daemon says that the caller has"),
    (
        Class::Sensor,
        "from the driver's own library where the process can open it, else NVML_ERROR_NOT_SUPPORTED",
    ),
    (
        Class::Local,
        "in the library, from nothing but the arguments",
    ),
    (Class::Absent, "NVML_ERROR_NOT_SUPPORTED"),
];

/// The text of `docs/nvml-functions.md`.
pub fn render() -> String {
    let mut out = String::from(HEAD);
    out.push_str("| class | functions | answered |\n|---|---:|---|\n");
    for (class, meaning) in CLASSES {
        let count = ROWS.iter().filter(|row| row.class == class).count();
        out.push_str(&format!("| {} | {count} | {meaning} |\n", class.name()));
    }
    out.push_str("\n| function | class | why it is absent |\n|---|---|---|\n");
    for row in ROWS {
        let why = row.why.map_or("", |why| why.text());
        out.push_str(&format!(
            "| `{}` | {} | {why} |\n",
            row.name,
            row.class.name()
        ));
    }
    out
}
