//! Which images are rewritten before the driver gets them, because it would do something of theirs where
//! the client does not see it; how is `ptx::rewrite`'s.
//!
//! `__managed__` variables it would put where only this process reaches them. An image that comes with PTX
//! is compiled from that instead, with its variables in memory that the client has too.
#![forbid(unsafe_code)]

use ptx::Error;
use ptx::image::select;
use ptx::rewrite::{Rewritten, rewrite};

/// An image's PTX for a device of this architecture, rewritten, or why it could not be. `None` if the
/// image is to stay as it is.
pub(crate) fn rewritten(image: &[u8], architecture: u32) -> Option<Result<Rewritten, Error>> {
    let ptx = select(image, architecture).ok()?;
    if !ptx.text.contains(".managed") {
        return None;
    }
    Some(rewrite(&ptx.text, &[]))
}
