//! Windows that a client has beside its first ones: each is taken of its account of addresses, added to the engine, and
//! told of where another server can take the client over, which gives it the same again.
//!
//! Called by the heaps' backing, and by admission for windows of a former server. Must not know blocks, nor how the main
//! thread tells.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cuda_abi::CUresult;
use engine::{Client, FurtherWindow, Window};
use transport::memory::{MemoryError, Sealed};

use crate::event_queue::{EventQueue, ServerEvent};
use crate::memory::address_account::AddressAccount;

/// A client's further windows.
#[derive(Debug)]
pub struct FurtherWindows {
    /// What it has of addresses.
    pub account: AddressAccount,
    /// How they are told of, if the client can be taken over.
    pub told: Option<Told>,
}

/// How a client's further windows are told of.
#[derive(Debug)]
pub struct Told {
    /// The client's session.
    pub session: u64,
    /// By way of whom.
    pub events: Arc<EventQueue>,
    /// Whether their memory lies in files.
    pub in_files: bool,
}

impl FurtherWindows {
    /// Adds a window of a device, of at least so many bytes.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when there are not as many addresses in a row, and why the engine cannot.
    pub fn extend(
        &self,
        client: &mut dyn Client,
        device: u32,
        bytes: u64,
    ) -> Result<Window, CUresult> {
        let full = CUresult::ERROR_OUT_OF_MEMORY;
        let addresses = self.account.allocate(bytes).ok_or(full)?;
        let window = addresses.window();
        let (file, copy) = match &self.told {
            Some(told) if told.in_files => {
                let file = Sealed::create("openmps-device", window.bytes).map_err(|_| full)?;
                let file = OwnedFd::from(file);
                let copy = file.try_clone().map_err(|_| full)?;
                (Some(file), Some(copy))
            }
            _ => (None, None),
        };
        client.window_add(FurtherWindow {
            device,
            window,
            addresses,
            file,
        })?;
        if let Some(told) = &self.told {
            told.events.push(ServerEvent::WindowMade {
                session: told.session,
                device,
                window,
                file: copy,
            });
        }
        Ok(window)
    }

    /// Takes such a window back, of which nothing is committed.
    pub fn retract(&self, client: &mut dyn Client, window: Window) {
        // Before its addresses can be another's.
        if let Some(told) = &self.told {
            let (session, base) = (told.session, window.base);
            told.events.push(ServerEvent::WindowGone(session, base));
        }
        client.window_remove(window);
    }
}

/// Further windows that a client had in a former server. Nobody else gets their addresses meanwhile.
#[derive(Debug, Default)]
pub struct InheritedWindows {
    account: AddressAccount,
    /// By address.
    windows: BTreeMap<u64, FurtherWindow>,
    /// Some are not to be had.
    is_short: bool,
}

/// Why a client's further windows are not to be had again.
#[derive(Debug)]
pub enum NotInherited {
    /// Addresses are another client's, or none that clients have.
    Addresses,
    /// A window came without the file that it lies in.
    NoFile,
    /// Such a file is none.
    File(MemoryError),
}

impl InheritedWindows {
    /// Takes the addresses of one, unless it has them already.
    pub fn add(&mut self, device: u32, window: Window, file: Option<OwnedFd>) {
        if self.windows.contains_key(&window.base) {
            return;
        }
        let Some(addresses) = self.account.allocate_at(window) else {
            self.is_short = true;
            return;
        };
        let further = FurtherWindow {
            device,
            window,
            addresses,
            file,
        };
        self.windows.insert(window.base, further);
    }

    /// What the client has, and the windows for the engine, whose memory lies in files or does not.
    ///
    /// # Errors
    /// When not all are to be had.
    pub fn take(
        self,
        in_files: bool,
    ) -> Result<(AddressAccount, Vec<FurtherWindow>), NotInherited> {
        if self.is_short {
            return Err(NotInherited::Addresses);
        }
        let windows = self.windows.into_values().map(|further| {
            let file = match further.file {
                Some(file) if in_files => {
                    let file = Sealed::from_fd(file, further.window.bytes);
                    Some(file.map_err(NotInherited::File)?.into())
                }
                None if in_files => return Err(NotInherited::NoFile),
                _ => None,
            };
            Ok(FurtherWindow { file, ..further })
        });
        let windows = windows.collect::<Result<_, _>>()?;
        Ok((self.account, windows))
    }
}

impl std::fmt::Display for NotInherited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Addresses => f.write_str("its addresses in its former server are another's here"),
            Self::NoFile => {
                f.write_str("its former server has not left the file of one of its windows")
            }
            Self::File(error) => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::arena::EXTENT;

    use super::*;
    use crate::memory::address_account::tests::ADDRESSES;

    /// A window that nobody has.
    fn vacant(bytes: u64) -> Window {
        let account = AddressAccount::default();
        account.allocate(bytes).unwrap().window()
    }

    fn file(bytes: u64) -> OwnedFd {
        Sealed::create("openmps-test", bytes).unwrap().into()
    }

    #[test]
    fn windows_are_where_they_were_and_counted_until_nobody_has_them() {
        let _alone = ADDRESSES.lock();
        let window = vacant(3 * EXTENT);
        let mut inherited = InheritedWindows::default();
        for _ in 0..2 {
            inherited.add(1, window, Some(file(window.bytes)));
        }
        let (account, windows) = inherited.take(true).unwrap();
        let [further] = &windows[..] else {
            panic!("it was told twice of one");
        };
        assert_eq!((further.device, further.window), (1, window));
        assert!(further.file.is_some());
        let other = AddressAccount::default();
        assert!(other.allocate_at(window).is_none(), "somebody has it");
        assert!(account.allocate_at(window).is_none());
        drop(windows);
        assert!(other.allocate_at(window).is_some());
    }

    #[test]
    fn what_a_former_server_cannot_have_had_is_not_to_be_had() {
        let _alone = ADDRESSES.lock();
        let window = vacant(EXTENT);
        let place = |base, bytes, file| {
            let mut inherited = InheritedWindows::default();
            inherited.add(0, Window { base, bytes }, file);
            inherited.take(true)
        };
        let Window { base, bytes } = window;
        for (base, bytes) in [
            (base + 1, bytes),
            (base, bytes + 1),
            (base, 0),
            (0, bytes),
            (base, u64::MAX / EXTENT * EXTENT),
        ] {
            let refused = place(base, bytes, None);
            assert!(matches!(refused, Err(NotInherited::Addresses)));
        }
        let refused = place(base, bytes, None);
        assert!(matches!(refused, Err(NotInherited::NoFile)));
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        for wrong in [file(bytes - EXTENT / 2), reader] {
            let refused = place(base, bytes, Some(wrong));
            assert!(matches!(refused, Err(NotInherited::File(_))));
        }
        assert!(place(base, bytes, Some(file(bytes))).is_ok());
    }
}
