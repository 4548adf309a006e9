//! Signals as something that epoll can wait for.
//!
//! Called where the daemon is made. Must not know what a signal is answered with.

use std::os::unix::net::UnixStream;

/// The signals that end the daemon as `quit -t 0` does. Whoever started it with SIGHUP ignored, as nohup
/// does, wants it to go on.
pub(super) fn ending_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let ignored = ignored.unwrap_or(0);
    let mut signals = vec![SIGTERM, SIGINT, SIGHUP, SIGQUIT];
    signals.retain(|signal| *signal != SIGHUP || ignored >> (SIGHUP - 1) & 1 == 0);
    signals
}

/// Becomes readable when one of the signals came.
pub(super) fn on_signals(signals: &[i32]) -> std::io::Result<UnixStream> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    for &signal in signals {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(reader)
}

pub(super) fn drain(mut signals: &UnixStream) {
    use std::io::Read;
    let mut bytes = [0; 64];
    while matches!(signals.read(&mut bytes), Ok(64)) {}
}

pub(super) const SIGCHLD: i32 = 17;
const SIGTERM: i32 = 15;
const SIGINT: i32 = 2;
/// SIGHUP: its terminal is gone.
const SIGHUP: i32 = 1;
const SIGQUIT: i32 = 3;
