//! The process beside a server that receives the files which its clients register (`server::receive_files`).
//!
//! It is forked from the server before that has another thread, anything of a driver's or a client, so that it is of
//! the same user and as hard to look into from its first instruction on. It has nothing of the server's but the socket between
//! them, and ends with it, unless a client's file keeps it: then it stays, a few pages, until that file's program lets go.
//!
//! Called by `engines` when a server starts. Must not know what is done with the files.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use server::FileReceiver;
use transport::socket::Connection;

use crate::confinement::Confinement;

/// Starts a receiver. To be called before there is another thread.
///
/// # Errors
/// When the system has no room for another process.
pub fn start() -> std::io::Result<FileReceiver> {
    let (ours, theirs) = Connection::pair().map_err(std::io::Error::other)?;
    // SAFETY: there is no other thread, whose locks the child would have and nobody would let go.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        0 => {
            let done = receive(ours, &theirs);
            // SAFETY: ends the process, which has nothing to tidy up: what is open here is the server's.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        _ => Ok(FileReceiver::Process(ours)),
    }
}

fn receive(servers: Connection, server: &Connection) -> anyhow::Result<()> {
    drop(servers);
    let _ = rustix::thread::set_name(c"openmps-files");
    // It is the server that such a signal is for, and its end that of this process.
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGQUIT] {
        // SAFETY: no handler, so nothing runs.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    close_all_but(server.as_fd().as_raw_fd())?;
    let confinement = Confinement::from_environment()?;
    confinement.restrict_files(|_| ())?;
    confinement.filter_calls(sandbox::Profile::Server, |_| ())?;
    server::receive_files(server);
    Ok(())
}

/// Closes what the server has open, so that nobody takes this process for it: its daemon waits for the end of its
/// socket. Standard input and output lead nowhere.
fn close_all_but(own: RawFd) -> std::io::Result<()> {
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    for standard in 0..3 {
        // SAFETY: numbers; whoever had these descriptors in the server has them there.
        if unsafe { libc::dup2(null.as_raw_fd(), standard) } < 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for number in open {
        if number > 2 && number != own && number != null.as_raw_fd() {
            // SAFETY: no value of this process that has this number is used or dropped any more.
            unsafe { libc::close(number) };
        }
    }
    Ok(())
}
