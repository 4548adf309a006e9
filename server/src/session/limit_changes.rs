//! Changes of what a client may have while it runs: they are left for its session, which makes them
//! between two records and says what came of them.
//!
//! Called by the session's loop. Must not know who asked for them.

use std::time::Duration;

use cuda_abi::CUresult;
use protocol::control_messages::Change;
use protocol::limits;

use crate::admission::groups::LimitError;
use crate::event_queue::ServerEvent;
use crate::session::Session;
use crate::session::observer::Cancellation;

impl Session {
    /// Makes the changes that were asked for.
    pub(crate) fn apply_limit_changes(&mut self, cancellation: &Cancellation) {
        for change in cancellation.take_limit_changes() {
            let (code, text) = match self.change(&change) {
                Ok(()) => (CUresult::SUCCESS, String::new()),
                Err(wrong) => wrong,
            };
            self.observer.push_event(ServerEvent::Changed {
                request: change.request,
                code,
                text,
                accounts: self.accounts.read(),
            });
        }
    }

    fn change(&mut self, change: &Change) -> Result<(), LimitError> {
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
        if let Some(millis) = change.kernel_time {
            let limit = (millis != u64::MAX).then(|| Duration::from_millis(millis));
            self.observer.kernel_time.set_own(limit);
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
