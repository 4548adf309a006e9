//! Compute modes as the daemon sets them when it starts, and gives them back when it ends.
//!
//! Called by the daemon's start and end. Must not know NVML or files: it sees the trait `DeviceModes`.

use super::Daemon;
use super::error::SetModesError;
use crate::compute_mode::{Changed, named};
use crate::files::directories::text_variable;

impl Daemon {
    /// Gives back what a daemon that was killed did not, and sets the devices' modes if that was asked
    /// for. Who was not asked to set anything is not kept from starting by what cannot be given back:
    /// the log says so, and the next one tries again.
    ///
    /// # Errors
    /// When they cannot be; then nothing was set.
    pub(crate) fn set_modes(&mut self, asked: Option<u32>) -> Result<(), SetModesError> {
        let asked = match (asked, text_variable("OPENMPS_COMPUTE_MODE")?) {
            (Some(mode), _) => Some(mode),
            (None, Some(text)) => Some(named(&text)?),
            (None, None) => None,
        };
        let mut changed = Changed::read(self.instance.directories().compute_modes())?;
        if asked.is_none() && changed.is_empty() {
            return Ok(());
        }
        let devices = match (self.host.open_modes)() {
            Ok(Some(devices)) => devices,
            Err(error) if asked.is_none() => {
                self.log(&format!("Compute modes that an earlier daemon set cannot be restored: {error}; the next daemon tries again"));
                return Ok(());
            }
            Ok(None) if asked.is_none() => {
                self.log(
                    "Compute modes that an earlier daemon set cannot be restored: no device has one that could be set; \
                     the next daemon tries again",
                );
                return Ok(());
            }
            Ok(None) => return Err(SetModesError::NoDevice),
            Err(error) => return Err(SetModesError::Open(error)),
        };
        let mut lines = changed.restore(&*devices);
        if let Some(mode) = asked {
            lines.extend(changed.set_all(&*devices, mode)?);
        }
        for line in lines {
            self.log(&line);
        }
        self.modes = Some((changed, devices));
        Ok(())
    }

    /// Gives the devices back the modes that they had.
    pub(crate) fn restore_modes(&mut self) {
        if let Some((mut changed, devices)) = self.modes.take() {
            for line in changed.restore(&*devices) {
                self.log(&line);
            }
        }
    }
}
