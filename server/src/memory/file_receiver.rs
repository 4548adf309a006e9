//! Who takes the files that clients register, and descriptors of other interfaces, out of their sockets, and looks
//! at them first.
//!
//! A descriptor can be of a file whose file system is a program of the client's (FUSE). The kernel lets nobody go who
//! looks at it or closes it before that program answers, not by SIGKILL either. So where a server has a *receiver*, a
//! process beside it that nobody waits for, such a descriptor never comes into the server's own table: it gets only
//! files of which the receiver has seen that they lie in memory or on disks of this machine.
//!
//! Owns what the two say to each other. The server's program starts the receiver (`openmps/src/file_receiver.rs`).
//! Knows nothing of mappings.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use protocol::operations::{FILE_PACKET, JOURNAL_PACKET};
use rustix::fs::FileType;
use transport::memory::page_of;
use transport::socket::{Connection, SocketError};

/// How long a server waits for what comes of a file. One of this machine's is looked at in microseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// The number of NVIDIA's character devices, and what the kernel says of the file system of DMA buffers.
const NVIDIA: u32 = 195;
const DMA_BUFFERS: i64 = 0x444d_4142;

/// What the kernel says of the file system of memfds.
const TMPFS: i64 = 0x0102_1994;

/// Files that a receiver looks at at a time. What it cannot let go of stays among them.
const MOST: usize = 1024;

/// Bytes of the stack of a thread that looks at a file.
const STACK: usize = 256 << 10;

/// To the receiver goes the packet that is to be taken, with a client's socket and one for the answers. Its answers: the packet has been taken, and then the file, or else why there is none in words.
const TAKEN: &[u8] = b"taken";
const FILE: &[u8] = b"file";
/// In the place of both.
const NOT_SENT: &[u8] = b"not sent";
const NO_DESCRIPTOR: &[u8] = b"no descriptor";

/// Who receives the files of a server's clients.
#[derive(Debug)]
pub enum FileReceiver {
    /// The server itself, which a client's file can then keep from ending.
    Server,
    /// A process at the other end that runs [`receive_files`].
    Process(Connection),
}

/// Why there is no file.
#[derive(Debug)]
pub enum NoFile {
    /// The client sent something else, or nothing.
    NotSent,
    /// No descriptor is left for it. The packet is taken.
    NoDescriptor,
    /// It is of no use, in words.
    Unsuitable(String),
    /// Its file system does not answer. The packet is taken.
    NotAnswering,
    /// The receiver is gone, or has more to do than it can. The packet is not taken.
    NoReceiver,
}

impl FileReceiver {
    /// Takes the descriptor that a client has sent over its session's socket, with such a packet: of a file, or of
    /// something foreign.
    ///
    /// # Errors
    /// Why there is none.
    pub fn receive(&self, packet: &[u8], client: &Connection) -> Result<OwnedFd, NoFile> {
        let Self::Process(receiver) = self else {
            return receive_checked(packet, client);
        };
        let gone = |_| NoFile::NoReceiver;
        let (answers, theirs) = Connection::pair().map_err(|_| NoFile::NoReceiver)?;
        answers.set_receive_timeout(Some(PATIENCE)).map_err(gone)?;
        let fds = [client.as_fd(), theirs.as_fd()];
        receiver.try_send(packet, &fds).map_err(gone)?;
        drop(theirs);
        match &*answers.receive().map_err(gone)?.0 {
            TAKEN => {}
            NOT_SENT => return Err(NoFile::NotSent),
            NO_DESCRIPTOR => return Err(NoFile::NoDescriptor),
            _ => return Err(NoFile::NoReceiver),
        }
        match answers.receive() {
            Ok((said, fds)) if said == FILE => {
                let [file] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| NoFile::NoDescriptor)?;
                Ok(file)
            }
            Ok((why, _)) => Err(NoFile::Unsuitable(
                String::from_utf8_lossy(&why).into_owned(),
            )),
            Err(SocketError::Descriptors(_)) => Err(NoFile::NoDescriptor),
            Err(error) if error.would_wait() => Err(NoFile::NotAnswering),
            Err(_) => Err(NoFile::NoReceiver),
        }
    }
}

/// Receives files for the server at the other end until it is gone. Threads may then be left that look at files which
/// do not answer.
pub fn receive_files(server: &Connection) {
    let looking = Arc::new(AtomicUsize::new(0));
    loop {
        let (packet, fds) = match server.receive() {
            Ok(received) => received,
            // No descriptor is left; the server is told by the end of what it sent.
            Err(SocketError::Descriptors(_)) => continue,
            Err(_) => return,
        };
        let Ok([client, answers]) = <[OwnedFd; 2]>::try_from(fds) else {
            continue;
        };
        if looking.load(Ordering::Relaxed) >= MOST {
            continue;
        }
        looking.fetch_add(1, Ordering::Relaxed);
        let done = Arc::clone(&looking);
        let look = move || {
            receive_one(
                &packet,
                Connection::from_fd(client),
                &Connection::from_fd(answers),
            );
            done.fetch_sub(1, Ordering::Relaxed);
        };
        let thread = std::thread::Builder::new().stack_size(STACK);
        if thread.spawn(look).is_err() {
            looking.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Takes a client's file and says what it is. What it says may come too late for a server that has lost patience.
fn receive_one(packet: &[u8], client: Connection, answers: &Connection) {
    let file = take(packet, &client);
    // Kept for as long as the file takes, it would hide the server's end from the client.
    drop(client);
    let said = match file {
        Ok(file) => {
            let _ = answers.try_send(TAKEN, &[]);
            match check(packet, &file) {
                Ok(()) => answers.try_send(FILE, &[file.as_fd()]),
                Err(why) => answers.try_send(why.as_bytes(), &[]),
            }
        }
        Err(NoFile::NoDescriptor) => answers.try_send(NO_DESCRIPTOR, &[]),
        Err(_) => answers.try_send(NOT_SENT, &[]),
    };
    // There is nobody else to be told.
    drop(said);
}

/// Takes a descriptor that is the next one in a client's socket, and looks at it.
fn receive_checked(packet: &[u8], client: &Connection) -> Result<OwnedFd, NoFile> {
    let taken = take(packet, client)?;
    check(packet, &taken).map_err(NoFile::Unsuitable)?;
    Ok(taken)
}

/// Whether a descriptor may come into the server, which must never wait for who made it; else why not.
fn check(packet: &[u8], descriptor: &OwnedFd) -> Result<(), String> {
    if packet == FILE_PACKET {
        return page_of(descriptor)
            .map(drop)
            .map_err(|error| error.to_string());
    }
    let system = |error: rustix::io::Errno| error.to_string();
    if packet.starts_with(JOURNAL_PACKET) {
        // Of what is no memfd nobody knows seals; one of huge pages could have none left for who reads it.
        rustix::fs::fcntl_get_seals(descriptor).map_err(system)?;
        return match rustix::fs::fstatfs(descriptor).map_err(system)?.f_type {
            TMPFS => Ok(()),
            _ => Err("it is no memory of small pages".to_owned()),
        };
    }
    let stat = rustix::fs::fstat(descriptor).map_err(system)?;
    let is_character = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    if is_character && rustix::fs::major(stat.st_rdev) == NVIDIA {
        return Ok(());
    }
    match rustix::fs::fstatfs(descriptor).map_err(system)?.f_type {
        DMA_BUFFERS => Ok(()),
        _ => Err("it is neither of NVIDIA's driver nor a DMA buffer".to_owned()),
    }
}

/// Takes a packet with a descriptor that is the next one in a client's socket.
fn take(wanted: &[u8], client: &Connection) -> Result<OwnedFd, NoFile> {
    match client.try_receive() {
        Ok(Some((packet, fds))) if packet == wanted => {
            let [file] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| NoFile::NotSent)?;
            Ok(file)
        }
        Err(SocketError::Descriptors(packet)) if packet == wanted => Err(NoFile::NoDescriptor),
        _ => Err(NoFile::NotSent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::operations::FOREIGN_PACKET;
    use std::fs::File;

    /// A receiver on a thread of this process, a client, and the session's end of its socket.
    fn scene() -> (FileReceiver, Connection, Connection) {
        let (ours, theirs) = Connection::pair().unwrap();
        std::thread::spawn(move || receive_files(&theirs));
        let (client, session) = Connection::pair().unwrap();
        (FileReceiver::Process(ours), client, session)
    }

    #[test]
    fn a_file_of_this_machine_comes_and_others_are_refused_in_words() {
        let (receiver, client, session) = scene();
        let memory = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, 4096).unwrap();
        client.send(FILE_PACKET, &[memory.as_fd()]).unwrap();
        let file = receiver.receive(FILE_PACKET, &session).unwrap();
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!(inode(&file), inode(&memory));
        let null = File::open("/dev/null").unwrap();
        client.send(FILE_PACKET, &[null.as_fd()]).unwrap();
        let refused = receiver.receive(FILE_PACKET, &session);
        assert!(
            matches!(&refused, Err(NoFile::Unsuitable(why)) if why.contains("no regular file")),
            "{refused:?}"
        );
        // The session goes on.
        assert!(!client.is_closed());
    }

    #[test]
    fn what_is_sent_as_foreign_is_of_the_driver_and_no_file() {
        let (receiver, client, session) = scene();
        let memory = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let null = File::open("/dev/null").unwrap();
        for wrong in [memory.as_fd(), null.as_fd()] {
            client.send(FOREIGN_PACKET, &[wrong]).unwrap();
            let refused = receiver.receive(FOREIGN_PACKET, &session);
            assert!(
                matches!(&refused, Err(NoFile::Unsuitable(why)) if why.contains("NVIDIA")),
                "{refused:?}"
            );
        }
        client.send(FOREIGN_PACKET, &[memory.as_fd()]).unwrap();
        let refused = receiver.receive(FILE_PACKET, &session);
        assert!(matches!(refused, Err(NoFile::NotSent)), "{refused:?}");
    }

    #[test]
    fn what_is_no_file_is_told_and_so_is_that_nobody_receives() {
        let (receiver, client, session) = scene();
        assert!(matches!(
            receiver.receive(FILE_PACKET, &session),
            Err(NoFile::NotSent)
        ));
        client.send(b"x", &[]).unwrap();
        assert!(matches!(
            receiver.receive(FILE_PACKET, &session),
            Err(NoFile::NotSent)
        ));
        client.send(FILE_PACKET, &[]).unwrap();
        assert!(matches!(
            receiver.receive(FILE_PACKET, &session),
            Err(NoFile::NotSent)
        ));
        let (ours, theirs) = Connection::pair().unwrap();
        drop(theirs);
        let nobody = FileReceiver::Process(ours);
        assert!(matches!(
            nobody.receive(FILE_PACKET, &session),
            Err(NoFile::NoReceiver)
        ));
    }
}
