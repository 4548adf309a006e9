//! Which devices there are as long as no server has said: a process is run that lists them, and whoever asked to be shown them
//! waits for it. Called by `views` and the event loop. Must not know what is shown of a device.

use std::io::{ErrorKind, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use super::Daemon;
use super::epoll_token::EpollToken;
use super::error::ScanError;
use crate::commands::device_from_json;
use crate::host::OWN_PROGRAM;
use crate::views::{DeviceScan, MAX_PRINTED, SCANNED_WITHIN};

impl Daemon {
    /// Has a process look at the devices, unless one does already.
    pub(super) fn scan_devices(&mut self) -> Result<(), ScanError> {
        if self.views.scan.is_some() {
            return Ok(());
        }
        let log = self.instance.server_log.try_clone_file();
        let mut child = (self.host.start_server)(Path::new(OWN_PROGRAM), None)
            .arg("devices")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log?)
            .spawn()?;
        let watched = match &child.stdout {
            Some(printed) => rustix::io::ioctl_fionbio(printed, true)
                .and_then(|()| self.watch(printed, EpollToken::DeviceScan)),
            None => Err(rustix::io::Errno::PIPE),
        };
        if let Err(error) = watched {
            let _ = child.kill();
            return Err(error.into());
        }
        self.views.scan = Some(DeviceScan {
            child,
            printed: Vec::new(),
            has_ended: false,
            deadline: Instant::now() + SCANNED_WITHIN,
        });
        Ok(())
    }

    /// The process that looks at the devices has printed something, or ended.
    pub(crate) fn scan_printed(&mut self) {
        let Some(look) = &mut self.views.scan else {
            return;
        };
        let Some(from) = &mut look.child.stdout else {
            return;
        };
        let mut bytes = [0; 4096];
        loop {
            match from.read(&mut bytes) {
                Ok(0) => {
                    look.has_ended = true;
                    break;
                }
                Ok(count) if look.printed.len() + count <= MAX_PRINTED => {
                    look.printed.extend(&bytes[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => {
                    look.printed.clear();
                    break;
                }
            }
        }
        self.scan_is_over();
    }

    /// The look is over.
    fn scan_is_over(&mut self) {
        let Some(mut look) = self.views.scan.take() else {
            return;
        };
        if let Some(printed) = &look.child.stdout {
            self.unwatch(printed);
        }
        // Without an end of its output it has not ended, and may be killed by its number. All children are
        // reaped where the daemon hears of them.
        if !look.has_ended {
            let _ = look.child.kill();
        }
        let list: Vec<serde_json::Value> =
            serde_json::from_slice(&look.printed).unwrap_or_default();
        self.views.found = list.iter().filter_map(device_from_json).collect();
        let waiting = std::mem::take(&mut self.views.waiting_for_scan);
        if self.devices_known().is_empty() {
            for asker in waiting {
                self.refuse_view(&asker, "there is no device that works; server.log says why");
            }
            return;
        }
        for asker in waiting {
            self.count(asker);
        }
    }

    /// Ends a process that takes too long.
    pub(super) fn end_late_scan(&mut self, now: Instant) {
        let scan = self.views.scan.as_ref();
        if scan.is_some_and(|scan| scan.deadline <= now) {
            self.scan_is_over();
        }
    }
}
