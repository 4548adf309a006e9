//! The page that was started with the daemon: a process of its own, of which the daemon says when it ends before the daemon does.
//!
//! Called by the event loop. Must not know what a page is for, nor start another.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;

use super::Daemon;
use super::epoll_token::EpollToken;

/// The page's process.
#[derive(Debug)]
pub(crate) struct PageProcess {
    pid: i32,
    process: OwnedFd,
}

impl Daemon {
    /// Takes note of the page's process, if there is one.
    pub(crate) fn watch_page(&mut self, pid: Option<i32>) {
        let Some(pid) = pid else {
            return;
        };
        let process = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
        match process {
            Some(Ok(process)) if self.watch(&process, EpollToken::Page).is_ok() => {
                self.page = Some(PageProcess { pid, process });
            }
            // It has ended already.
            _ => self.say_that_page_ended(pid),
        }
    }

    /// The page's process has ended.
    pub(crate) fn page_ended(&mut self) {
        let Some(page) = self.page.take() else {
            return;
        };
        self.unwatch(&page.process);
        if !self.is_quitting() {
            self.say_that_page_ended(page.pid);
        }
    }

    fn say_that_page_ended(&self, pid: i32) {
        self.log(&format!(
            "The page's process {pid} has ended by itself; `openmps page` starts another, and clients do not notice"
        ));
        self.event("page.ended", json!({ "page": pid }), json!({}));
    }
}
