//! `docs/coverage.md`: which functions are built, as text made from the table.
//!
//! A pure function of `cuda-abi`'s rows.
//!
//! Called by `coverage`, which writes and compares. Reads no file.

use cuda_abi::functions::{Capture, Class, ROWS, Row};

/// The text of `docs/coverage.md`.
pub fn render() -> String {
    let mut out = String::from(HEAD);
    let built = ROWS.iter().filter(|row| row.is_built()).count();
    let partial = ROWS.iter().filter(|row| row.partial.is_some()).count();
    let twins = ROWS.iter().filter(|row| row.twin.is_some()).count();
    out.push_str(&format!(
        "{} functions, of which {} are complete, {partial} partial and {} absent. {twins} have a twin for a per-thread default \
         stream, which is built where its function is.\n\n",
        ROWS.len(),
        built - partial,
        ROWS.len() - built,
    ));
    out.push_str("| class | functions | |\n|---|---:|---|\n");
    for (class, meaning) in CLASSES {
        let count = ROWS.iter().filter(|row| row.class == class).count();
        line(&mut out, &[class.name(), &count.to_string(), meaning]);
    }
    out.push_str(
        "\n| function | built | since | twin since | class | during capture |\n\
         |---|---|---|---|---|---|\n",
    );
    for row in ROWS {
        row_line(&mut out, row);
    }
    out
}

const HEAD: &str = "\
# Coverage of the driver API

Made from the table in `cuda-abi/src/functions/rows.rs`; do not edit. To make it again:
`cargo xtask coverage`.

An absent function answers CUDA_ERROR_NOT_SUPPORTED, and the client's log (`OPENMPS_CLIENT_LOG`) names it. One that says
why stays absent; one that does not is yet to be built.

";

const CLASSES: [(Class, &str); 6] = [
    (Class::Local, "answered in the client"),
    (Class::Post, "told to the server, no reply"),
    (Class::Create, "makes what the client has named, no reply"),
    (Class::Call, "asks the server and waits"),
    (
        Class::Custom,
        "by hand: depends on the arguments, or waits for completion words",
    ),
    (
        Class::Absent,
        "not built: returns CUDA_ERROR_NOT_SUPPORTED and is counted",
    ),
];

/// Why functions whose names begin so, or are this, are not built. The first that fits counts.
const REASONS: &[(&str, &str)] = &[
    ("cuGraphicsEGL", EGL),
    ("cuGraphicsResourceGetMappedEglFrame", EGL),
    ("cuEGL", EGL),
    ("cuGraphicsVDPAU", VDPAU),
    ("cuVDPAU", VDPAU),
    (
        "cuExternalMemoryGetMappedMipmappedArray",
        "graphics: memory of other interfaces is not taken, and so none of their images is",
    ),
    ("cuGraphics", GRAPHICS),
    ("cuGL", GRAPHICS),
    (
        "cuDeviceGetNvSciSyncAttributes",
        "NvSci: it is of Tegra systems and QNX",
    ),
    (
        "cuMulticast",
        "multicast: memory of several devices under one address needs NVSwitch objects that no other \
         client may hold; CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED is 0",
    ),
    (
        "cuFlushGPUDirectRDMAWrites",
        "RDMA: no other device reaches the server's memory; CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED is 0",
    ),
    (
        "cuCoredump",
        "core dumps: they would hold what the server's other clients have on the device",
    ),
    (
        "cuCheckpointProcess",
        "checkpoints: the state on the device is the server's, and other clients' with it",
    ),
    (
        "cuMemMapArrayAsync",
        "sparse arrays: CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED is 0",
    ),
    (
        "cuMemGetAttribute",
        "exported by the driver, documented nowhere",
    ),
];

const EGL: &str = "EGL: the server has no display";
const VDPAU: &str = "VDPAU: the server has no display";
const GRAPHICS: &str =
    "graphics: the server shares no context of OpenGL's, and Direct3D is Windows'";

/// Why a function is not built, if that is to stay so.
fn reason(name: &str) -> Option<&'static str> {
    let fits = REASONS.iter().find(|(begins, _)| name.starts_with(begins));
    fits.map(|(_, why)| *why)
}

fn row_line(out: &mut String, row: &Row) {
    let capture = match row.capture {
        Capture::Allowed => "allowed",
        Capture::Invalidates => "invalidates",
        Capture::Node => "node",
        Capture::Prohibited => "prohibited",
    };
    let name = format!("`{}`", row.name);
    let built = match (row.is_built(), row.partial) {
        (false, _) => match reason(row.name) {
            Some(why) => format!("absent: {why}"),
            None => "absent".to_owned(),
        },
        (true, Some(how)) => format!("partial: {how}"),
        (true, None) => "complete".to_owned(),
    };
    let twin = row
        .twin
        .map_or_else(|| "–".to_owned(), |twin| version(twin.since));
    line(
        out,
        &[
            &name,
            &built,
            &version(row.since),
            &twin,
            row.class.name(),
            capture,
        ],
    );
}

/// A CUDA version as people write it.
fn version(number: u32) -> String {
    match number {
        0 => "–".to_owned(),
        _ => format!("{}.{}", number / 1000, number % 1000 / 10),
    }
}

fn line(out: &mut String, cells: &[&str]) {
    out.push_str("| ");
    out.push_str(&cells.join(" | "));
    out.push_str(" |\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_that_of_an_absent_function() {
        for (begins, _) in REASONS {
            let of_absent = ROWS
                .iter()
                .any(|row| !row.is_built() && row.name.starts_with(begins));
            assert!(of_absent, "{begins}: nothing absent has this reason");
        }
    }

    #[test]
    fn what_is_built_needs_no_reason() {
        for row in ROWS {
            assert!(
                !row.is_built() || reason(row.name).is_none(),
                "{}",
                row.name
            );
        }
    }
}
