//! A folder that lasts as long as a test.
//!
//! Used by nearly all tests of platforms. Must not know what is in it.

use std::path::{Path, PathBuf};

use anyhow::Result;

/// A folder of this run's own, gone when it is dropped. Short, since sockets are in it.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes it.
    pub fn new(name: &str) -> Result<Self> {
        // The folder for temporary files is this test's own.
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
