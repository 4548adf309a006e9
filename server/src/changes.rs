//! Changes of what a client may have while it runs: they are left for its session, which makes them
//! between two records and says what came of them.

use cuda_abi::{CUresult, limits};
use transport::handshake::Change;

use crate::groups::Wrong;
use crate::news::News;
use crate::observer::Ender;
use crate::session::Session;

impl Session {
    /// Makes the changes that were asked for.
    pub(crate) fn make_changes(&mut self, ender: &Ender) {
        for change in ender.take_changes() {
            let (code, text) = match self.change(&change) {
                Ok(()) => (CUresult::SUCCESS, String::new()),
                Err(wrong) => wrong,
            };
            self.shared.tell(News::Changed {
                request: change.request,
                code,
                text,
                used: self.memory.used(),
            });
        }
    }

    fn change(&mut self, change: &Change) -> Result<(), Wrong> {
        let unknown = |(device, _): &&(u32, u64)| *device as usize >= self.devices.len();
        if let Some((device, _)) = change.memory.iter().find(unknown) {
            let code = CUresult::ERROR_INVALID_DEVICE;
            return Err((code, format!("there is no device {device}")));
        }
        let mut share = self.share;
        if let Some(text) = &change.percentage {
            share.percentage = limits::percentage(text)
                .map_err(|error| (CUresult::ERROR_INVALID_VALUE, error.to_string()))?;
        }
        share.reserved = change.reserved.unwrap_or(share.reserved);
        share.priority = change.priority.unwrap_or(share.priority);
        if share != self.share {
            self.client
                .set_share(share)
                .map_err(|code| (code, why(code)))?;
            self.share = share;
        }
        for (device, bytes) in &change.memory {
            self.memory.set_limit(*device, *bytes);
        }
        Ok(())
    }
}

fn why(code: CUresult) -> String {
    match code {
        CUresult::ERROR_NOT_SUPPORTED => {
            "this device's compute cannot be divided anew while a client runs; set a percentage \
             before it starts"
                .to_owned()
        }
        CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION => {
            "more would be reserved than the device has".to_owned()
        }
        _ => format!("the device refuses it with error {}", code.0),
    }
}
