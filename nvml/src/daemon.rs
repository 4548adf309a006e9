//! Asking the control daemon what the caller may see.
//!
//! Each question is a connection of its own, so threads and fork's children need nothing of each other.
//!
//! Called by `state`. Must not know NVML's structures.

use std::time::Duration;

use cuda_abi::nvml::nvmlReturn_t;
use daemon_interface::control_socket;
use daemon_interface::view::{self, ViewError};
use protocol::control_messages::{Unreadable, View, ViewRequest};

use crate::log::log;

/// How long each step of an answer may take: the first one may have to wait for a look at the devices.
const MOST: Duration = Duration::from_secs(10);

/// The view of this process, as it is now.
///
/// # Errors
/// `gone` when there is no daemon; what the reason is called otherwise.
pub(crate) fn view(gone: nvmlReturn_t) -> Result<View, nvmlReturn_t> {
    let request = ViewRequest {
        all: false,
        memory_limit: daemon_interface::environment::variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
            .map(|text| text.to_string_lossy().into_owned()),
    };
    view::request_view(&control_socket(), request, MOST).map_err(|error| {
        log!("cannot ask the daemon: {error}");
        code(&error, gone)
    })
}

fn code(error: &ViewError, gone: nvmlReturn_t) -> nvmlReturn_t {
    match error {
        ViewError::Socket(error) if error.would_wait() => nvmlReturn_t::ERROR_TIMEOUT,
        ViewError::Socket(error) if error.not_permitted() => nvmlReturn_t::ERROR_NO_PERMISSION,
        ViewError::Untrusted(_) => nvmlReturn_t::ERROR_NO_PERMISSION,
        ViewError::Socket(_) => gone,
        ViewError::Answer(Unreadable::Version(_)) => nvmlReturn_t::ERROR_LIB_RM_VERSION_MISMATCH,
        ViewError::Answer(_) | ViewError::Refused(_) | ViewError::Other => {
            nvmlReturn_t::ERROR_UNKNOWN
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::control_messages::{OtherMajor, Version};
    use transport::socket::SocketError;

    #[test]
    fn errors_have_their_codes() {
        let gone = nvmlReturn_t::ERROR_DRIVER_NOT_LOADED;
        let system = |errno| ViewError::Socket(SocketError::Path("connect to", "x".into(), errno));
        let theirs = Version { major: 9, minor: 0 };
        let other = Unreadable::Version(OtherMajor { theirs });
        for (error, expected) in [
            (system(rustix::io::Errno::NOENT), gone),
            (system(rustix::io::Errno::CONNREFUSED), gone),
            (ViewError::Socket(SocketError::Closed), gone),
            (
                system(rustix::io::Errno::AGAIN),
                nvmlReturn_t::ERROR_TIMEOUT,
            ),
            (
                system(rustix::io::Errno::ACCESS),
                nvmlReturn_t::ERROR_NO_PERMISSION,
            ),
            (
                ViewError::Answer(other),
                nvmlReturn_t::ERROR_LIB_RM_VERSION_MISMATCH,
            ),
            (ViewError::Other, nvmlReturn_t::ERROR_UNKNOWN),
        ] {
            assert_eq!(code(&error, gone), expected, "{error}");
        }
    }
}
