//! Which images are rewritten before the driver gets them, because it would do something of theirs where
//! the client does not see it; how is `ptx::rewrite`'s.
//!
//! * `__managed__` variables it would put where only this process reaches them.
//! * What kernels print it would print here (`crate::output`).
//!
//! An image that comes with PTX is compiled from that instead. It takes time, so machine code stays if all
//! that would be gained is the message of an assertion, or if there is very much of it.
#![forbid(unsafe_code)]

use ptx::Error;
use ptx::image::fatbin::{EntryKind, entries};
use ptx::image::select;
use ptx::rewrite::{Rewritten, rewrite};

use crate::output::{PRELUDE, REDIRECTS};

/// Bytes of text beyond which machine code that prints is left as it is.
const MOST_TEXT: usize = 2 << 20;

/// An image's PTX for a device of this architecture, rewritten, or why it could not be. `None` if the
/// image is to stay as it is.
pub(crate) fn rewritten(image: &[u8], architecture: u32) -> Option<Result<Rewritten, Error>> {
    let ptx = select(image, architecture).ok()?;
    let has = |word| ptx.text.contains(word);
    let compiled = has_code(image, architecture);
    let wanted = has(".managed")
        || (has("vprintf") && !(compiled && ptx.text.len() > MOST_TEXT))
        || (has("__assertfail") && !compiled);
    wanted.then(|| rewrite(&ptx.text, PRELUDE, REDIRECTS))
}

/// Whether a fatbin has machine code that a device of this architecture runs.
fn has_code(image: &[u8], architecture: u32) -> bool {
    entries(image).flatten().any(|entry| {
        entry.kind == EntryKind::Elf
            && entry.arch / 10 == architecture / 10
            && entry.arch <= architecture
    })
}
