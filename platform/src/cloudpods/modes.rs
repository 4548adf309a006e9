//! The compute modes that were changed, kept in a file, so that whoever stops puts back what was there
//! before, even if it was not he who changed it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::gpus::ComputeMode;

/// Devices, by UUID, and the modes that they had.
#[derive(Debug)]
pub struct Changed {
    path: PathBuf,
    before: BTreeMap<String, u32>,
}

impl Changed {
    /// What a file says, if there is one. One that cannot be read was not written by us to its end,
    /// and nothing was changed before it was.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let text = fs::read(path).unwrap_or_default();
        Self {
            path: path.to_owned(),
            before: serde_json::from_slice(&text).unwrap_or_default(),
        }
    }

    /// Writes down that a device is about to be changed. The first that is written of a device counts.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn remember(&mut self, uuid: &str, mode: ComputeMode) -> std::io::Result<()> {
        if !self.before.contains_key(uuid) {
            self.before.insert(uuid.to_owned(), mode.number());
            self.write()?;
        }
        Ok(())
    }

    /// The devices that were changed, and what they were.
    #[must_use]
    pub fn before(&self) -> Vec<(String, ComputeMode)> {
        let known =
            |(uuid, number): (&String, &u32)| Some((uuid.clone(), ComputeMode::numbered(*number)?));
        self.before.iter().filter_map(known).collect()
    }

    /// Strikes a device out: it is again what it was.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn forget(&mut self, uuid: &str) -> std::io::Result<()> {
        self.before.remove(uuid);
        match self.before.is_empty() {
            true => fs::remove_file(&self.path),
            false => self.write(),
        }
    }

    fn write(&self) -> std::io::Result<()> {
        let new = self.path.with_extension("new");
        let mut file = fs::File::create(&new)?;
        file.write_all(serde_json::to_string(&self.before)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_mode_is_what_is_put_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("modes.json");
        let mut changed = Changed::read(&path);
        changed.remember("GPU-a", ComputeMode::Default).unwrap();
        // Killed here; the next one finds the mode that it set itself.
        let mut changed = Changed::read(&path);
        changed
            .remember("GPU-a", ComputeMode::ExclusiveProcess)
            .unwrap();
        changed.remember("GPU-b", ComputeMode::Prohibited).unwrap();
        assert_eq!(
            changed.before(),
            [
                ("GPU-a".to_owned(), ComputeMode::Default),
                ("GPU-b".to_owned(), ComputeMode::Prohibited)
            ]
        );
        changed.forget("GPU-a").unwrap();
        assert_eq!(Changed::read(&path).before().len(), 1);
        changed.forget("GPU-b").unwrap();
        assert!(!path.exists());
        fs::write(&path, "{\"GPU-a\": 9, \"GPU").unwrap();
        assert!(Changed::read(&path).before().is_empty());
    }
}
