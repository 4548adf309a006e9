//! What a service manager is told, sd_notify(3)'s way: one datagram to the socket that it named.
//!
//! Nobody waits for it, and nothing fails for it.
//!
//! Called by the daemon when it is ready and when it stops, and by `openmps`' daemon for Cloudpods. Must not know
//! systemd by name: any manager with that variable is told.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Set in the process that becomes the background daemon.
pub const READY_VARIABLE: &str = "OPENMPS_CONTROL_READY";

/// The variable with the socket's name; servers do not inherit it.
pub const VARIABLE: &str = "NOTIFY_SOCKET";

/// Tells the service manager, if there is one, for example `READY=1`.
pub fn notify_service_manager(state: &str) {
    let Some(name) = std::env::var_os(VARIABLE) else {
        return;
    };
    let address = match name.as_bytes() {
        // A name that belongs to no file.
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(&name),
    };
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        let _ = socket.set_nonblocking(true);
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
}
