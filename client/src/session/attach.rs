//! cuInit: finding the daemon and becoming one of its clients.
//!
//! Owns the handshake and the waits in it. `api::init` calls it, and what comes of it is a
//! [`Session`]; it knows no operation.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use daemon_interface::ConnectError;
use daemon_interface::label;
use protocol::control_messages::{self, ClientFields, Hello, Packet, Purpose, Welcome};
use transport::memory::Mapping;
use transport::session::{ClientEnd, SessionMemory};
use transport::socket::{Connection, SocketError};

use super::address_windows::Windows;
use super::connection::{self, Device};
use super::{Session, job, visible_devices};
use crate::log::log;

/// How long a daemon may take to give a session: it may have to start a server first.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a daemon that is not there yet is looked for.
const RETRY: Duration = Duration::from_millis(5);

/// One thread at a time attaches.
static ATTACHING: Mutex<()> = Mutex::new(());

/// Makes this process a client, once.
///
/// # Errors
/// The MPS errors 805 to 810 as the daemon or its absence says, CUDA_ERROR_NO_DEVICE when there is
/// no device that this program may see, CUDA_ERROR_NOT_INITIALIZED in a fork's child of a client.
pub(crate) fn attach() -> Result<(), CUresult> {
    if super::was_published() {
        return super::session().map(drop);
    }
    let _attaching = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
    if super::was_published() {
        return super::session().map(drop);
    }
    let connection = connect()?;
    let (welcome, fds) = greet(&connection)?;
    let session = open(connection, &welcome, fds)?;
    let connection = session.connection();
    session.publish()?;
    crate::recorder::start(connection);
    Ok(())
}

/// Whether a path that is none is a list of absolute ones.
fn names_several(path: &std::path::Path) -> bool {
    let text = path.to_string_lossy();
    let mut parts = text.split([',', ':']);
    parts.clone().count() > 1 && parts.all(|part| part.starts_with('/'))
}

/// A variable's text, if the environment is to be believed.
fn text_of(name: &str) -> Option<String> {
    let value = daemon_interface::environment::variable(name)?;
    Some(value.to_string_lossy().into_owned())
}

fn connect() -> Result<Connection, CUresult> {
    let path = daemon_interface::control_socket();
    let patience = match text_of("OPENMPS_CONNECT_TIMEOUT") {
        Some(text) => parse_time(&text).unwrap_or_else(|| {
            log!(
                "OPENMPS_CONNECT_TIMEOUT={text:?} is no time such as 5, 0.5s or 500ms: not waiting"
            );
            Duration::ZERO
        }),
        None => Duration::ZERO,
    };
    let begin = Instant::now();
    loop {
        let left = patience.saturating_sub(begin.elapsed());
        match daemon_interface::connect(&path, Some(left.max(WELCOME_TIMEOUT))) {
            Ok(connection) => return Ok(connection),
            Err(error) if error.is_nobody_listening() && !left.is_zero() => {
                std::thread::sleep(RETRY.min(left));
            }
            Err(_) if names_several(&path) => {
                log!(
                    "cannot attach: CUDA_MPS_PIPE_DIRECTORY names several directories, and a \
                     process is the client of one daemon"
                );
                return Err(CUresult::ERROR_MPS_CONNECTION_FAILED);
            }
            Err(error @ ConnectError::Untrusted(_)) => {
                log!("cannot attach: {error}");
                return Err(CUresult::ERROR_MPS_CONNECTION_FAILED);
            }
            Err(error) => {
                log!("cannot attach: {error}; start a daemon with: openmps control -d");
                return Err(CUresult::ERROR_MPS_CONNECTION_FAILED);
            }
        }
    }
}

/// A time such as `5`, `0.5`, `2s` or `500ms`; a bare number is seconds.
fn parse_time(text: &str) -> Option<Duration> {
    let text = text.trim();
    let (number, scale) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1.0),
    };
    let seconds = number.trim().parse::<f64>().ok()? * scale;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The program's name, for lists and logs.
fn program() -> String {
    std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_default()
}

/// What this program is to be called in lists, so short that it fits a packet.
fn own_label() -> Option<String> {
    let text = text_of(label::VARIABLE)?;
    if text.len() > label::MOST {
        log!(
            "{} has {} bytes, more than {}: its beginning is shown",
            label::VARIABLE,
            text.len(),
            label::MOST
        );
    }
    label::of(&text)
}

fn greet(connection: &Connection) -> Result<(Welcome, Vec<std::os::fd::OwnedFd>), CUresult> {
    let hello = Packet::Hello(Hello {
        version: control_messages::VERSION,
        fingerprint: control_messages::fingerprint(),
        features: control_messages::FEATURE_QUEUED | control_messages::FEATURE_TAKEOVER,
        purpose: Purpose::Client(ClientFields {
            program: program(),
            percentage: text_of("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
                .filter(|_| !crate::context::thread_percentage::percentage_for_each()),
            memory_limit: text_of("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
            priority: text_of("CUDA_MPS_CLIENT_PRIORITY"),
            context: 0,
            partition: text_of("CUDA_MPS_SM_PARTITION"),
            label: own_label(),
            job: job::own(),
            kernel_time: text_of("OPENMPS_KERNEL_TIME_LIMIT"),
            isolation: text_of("OPENMPS_ISOLATION"),
        }),
    });
    let failed = |error: SocketError| {
        log!("the daemon does not answer: {error}");
        if error.would_wait() {
            CUresult::ERROR_MPS_SERVER_NOT_READY
        } else {
            CUresult::ERROR_MPS_CONNECTION_FAILED
        }
    };
    connection.send(&hello.encode(), &[]).map_err(failed)?;
    connection
        .set_receive_timeout(Some(WELCOME_TIMEOUT))
        .map_err(failed)?;
    let (packet, fds) = loop {
        let (bytes, fds) = connection.receive().map_err(failed)?;
        connection.set_receive_timeout(None).map_err(failed)?;
        match Packet::decode(&bytes) {
            // Its turn comes when it comes: another user's programs may run for days.
            Ok(Packet::Queued { text }) => {
                log!("waiting for the daemon to admit this program: {text}");
            }
            packet => break (packet, fds),
        }
    };
    match packet {
        Ok(Packet::Welcome(welcome)) => Ok((welcome, fds)),
        Ok(Packet::Refused { code, text }) => {
            log!("the daemon refused this program, error {code}: {text}");
            // Only a failure may end up as one: a refusal that says success is none of ours.
            Err(match code {
                0 => CUresult::ERROR_MPS_CONNECTION_FAILED,
                code => CUresult(code),
            })
        }
        Ok(_) => {
            log!("the daemon answered with a packet that is not for clients");
            Err(CUresult::ERROR_MPS_CONNECTION_FAILED)
        }
        Err(error) => {
            log!("the daemon's answer cannot be read: {error}");
            Err(CUresult::ERROR_MPS_CONNECTION_FAILED)
        }
    }
}

/// Maps what the server shares with us, and keeps its addresses out of the program's hands.
fn open(
    connection: Connection,
    welcome: &Welcome,
    fds: Vec<std::os::fd::OwnedFd>,
) -> Result<Session, CUresult> {
    let unusable = |what: &dyn std::fmt::Display| {
        log!("the server's answer cannot be used: {what}");
        CUresult::ERROR_MPS_CONNECTION_FAILED
    };
    let memory =
        SessionMemory::from_fds(fds, welcome.host_bytes).map_err(|error| unusable(&error))?;
    let facts = &welcome.facts;
    if facts.len() as u64 > u64::from(protocol::operations::CONTEXT_SLOTS) {
        return Err(unusable(&format_args!("{} devices", facts.len())));
    }
    let host_mapping = Mapping::map_at(&memory.host, welcome.host_base);
    let host_mapping = host_mapping.map_err(|error| unusable(&error))?;
    let windows = Windows::default();
    for device in facts {
        let added = windows.add(device.window, device.window_bytes);
        added.map_err(|error| unusable(&error))?;
    }
    let link = ClientEnd::new(&memory, connection).map_err(|error| unusable(&error))?;
    link.welcomed(welcome.clone());
    let all = facts.len() as u32;
    let devices: Vec<Device> = visible_devices::choose(
        facts,
        text_of("CUDA_VISIBLE_DEVICES").as_deref(),
        text_of("CUDA_DEVICE_ORDER").as_deref(),
    )
    .into_iter()
    .map(|number| Device {
        number: number as u32,
        facts: facts[number].clone(),
    })
    .collect();
    if devices.is_empty() {
        return Err(CUresult::ERROR_NO_DEVICE);
    }
    let host = welcome.host_base..welcome.host_base + welcome.host_bytes;
    let connection =
        connection::Connection::new(link, devices, host, host_mapping, memory.host, windows);
    Ok(Session::new(connection, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_directories_is_known_for_one() {
        for (text, several) in [
            ("/tmp/a,/tmp/b/control", true),
            ("/tmp/a:/tmp/b/control", true),
            ("/tmp/a:b/control", false),
            ("/tmp/a/control", false),
        ] {
            assert_eq!(names_several(text.as_ref()), several, "{text}");
        }
    }

    #[test]
    fn times_have_units_and_nonsense_is_none() {
        for (text, expected) in [
            ("5", Some(5000)),
            ("0.5", Some(500)),
            (" 2s ", Some(2000)),
            ("500ms", Some(500)),
            ("500 ms", Some(500)),
            ("", None),
            ("soon", None),
            ("-1", None),
            ("inf", None),
        ] {
            assert_eq!(
                parse_time(text),
                expected.map(Duration::from_millis),
                "{text:?}"
            );
        }
    }
}
