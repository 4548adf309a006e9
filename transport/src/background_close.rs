//! Closes what can take long to close, on threads that nobody waits for.
//!
//! A peer can leave descriptors in a socket's queue, and whoever empties the queue closes them. The last
//! close of a TCP socket that has unsent data and SO_LINGER waits for as long as the peer chose. A signal
//! ends that wait, so what is done here gets a short time and is then interrupted, again and again until it
//! is over. Knows nothing of what is closed.

#![allow(clippy::disallowed_types, reason = "no model of loom goes here")]

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

/// Closes at a time.
const THREADS: usize = 8;

/// How long a close may wait before it is interrupted.
const GRACE: Duration = Duration::from_millis(50);

/// How often those are interrupted that have waited for so long: one socket may hold hundreds that wait.
const AGAIN: Duration = Duration::from_millis(2);

/// What is to be done with one socket.
type Job = Box<dyn FnOnce() + Send>;

/// Sockets that may wait to be closed before [`is_behind`] asks for a pause.
const BACKLOG: usize = 256;

/// The C library's `pthread_t`, on Linux a number or a pointer.
type Thread = usize;

/// Ignored by default, so nobody counts on it coming or not.
const SIGURG: c_int = 23;

unsafe extern "C" {
    // POSIX, from the C library that std links.
    fn pthread_self() -> Thread;
    fn pthread_kill(thread: Thread, signal: c_int) -> c_int;
    fn signal(signal: c_int, handler: extern "C" fn(c_int)) -> usize;
}

struct CloseQueue {
    queue: VecDeque<Job>,
    /// Threads that close, and those of them that have nothing to do.
    threads: usize,
    idle: usize,
    /// Those that are at work, and since when. A thread listed here has not ended.
    closing: Vec<(Thread, Instant)>,
}

static CLOSES: Mutex<CloseQueue> = Mutex::new(CloseQueue {
    queue: VecDeque::new(),
    threads: 0,
    idle: 0,
    closing: Vec::new(),
});

/// Something is in the queue.
static QUEUED: Condvar = Condvar::new();

/// A job has begun.
static BEGUN: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, CloseQueue> {
    CLOSES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Closes descriptors soon, which somebody else sent: closing them may wait. Never waits.
pub fn close(descriptors: Vec<OwnedFd>) {
    if !descriptors.is_empty() {
        run(move || drop(descriptors));
    }
}

/// Does something soon that closes descriptors. Never waits.
pub fn run(job: impl FnOnce() + Send + 'static) {
    static INTERRUPTER: Once = Once::new();
    INTERRUPTER.call_once(|| {
        // SAFETY: a handler that does nothing, for a signal whose default is to be ignored: what it
        // changes is that a system call of the thread it is sent to is interrupted.
        unsafe { signal(SIGURG, do_nothing) };
        // Without it a close takes as long as it takes, on its own thread.
        let _ = spawn(interrupt_the_late);
    });
    let mut work = lock();
    work.queue.push_back(Box::new(job));
    if work.queue.len() > work.idle && work.threads < THREADS {
        // Counted by the thread that counts it, or the next to come would count on it.
        work.threads += 1;
        if spawn(close_queued).is_err() {
            // It waits in the queue for the next.
            work.threads -= 1;
        }
    }
    QUEUED.notify_one();
}

/// Whether so many sockets wait to be closed that no more should be taken from strangers for now.
#[must_use]
pub fn is_behind() -> bool {
    lock().queue.len() >= BACKLOG
}

fn spawn(run: fn()) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name("closer".into()).spawn(run)
}

extern "C" fn do_nothing(_: c_int) {}

fn close_queued() {
    // SAFETY: it has no arguments and always succeeds.
    let this = unsafe { pthread_self() };
    let mut work = lock();
    loop {
        let Some(job) = work.queue.pop_front() else {
            // One is enough to wait for the next.
            if work.idle > 0 {
                work.threads -= 1;
                return;
            }
            work.idle += 1;
            work = QUEUED.wait(work).unwrap_or_else(PoisonError::into_inner);
            work.idle -= 1;
            continue;
        };
        work.closing.push((this, Instant::now()));
        BEGUN.notify_one();
        drop(work);
        job();
        work = lock();
        work.closing.retain(|(thread, _)| *thread != this);
    }
}

fn interrupt_the_late() {
    let mut work = lock();
    loop {
        if work.closing.is_empty() {
            work = BEGUN.wait(work).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let is_late = |since: &Instant| since.elapsed() >= GRACE;
        let any_late = work.closing.iter().any(|(_, since)| is_late(since));
        drop(work);
        std::thread::sleep(if any_late { AGAIN } else { GRACE });
        work = lock();
        for (thread, since) in &work.closing {
            if is_late(since) {
                // SAFETY: a thread that is listed has not ended: it takes itself off the list, under
                // the lock that is held here, before it can. The signal's handler does nothing.
                unsafe { pthread_kill(*thread, SIGURG) };
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;
    use crate::socket::{Connection, SocketError, poll};

    /// A socket whose last close takes an hour: it has data to send to a peer that reads none.
    #[derive(Debug)]
    pub(crate) struct Trap {
        socket: TcpStream,
        peer: TcpStream,
    }

    impl Trap {
        pub(crate) fn new() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (peer, _) = listener.accept().unwrap();
            rustix::net::sockopt::set_socket_send_buffer_size(&socket, 4096).unwrap();
            rustix::net::sockopt::set_socket_recv_buffer_size(&peer, 4096).unwrap();
            let moment = Some(Duration::from_millis(20));
            // Room that comes when the peer's machine has taken something is filled too.
            socket.set_write_timeout(moment).unwrap();
            while socket.write(&[0; 65536]).is_ok() {}
            let hour = Some(Duration::from_secs(3600));
            rustix::net::sockopt::set_socket_linger(&socket, hour).unwrap();
            Self { socket, peer }
        }

        /// The socket, which is a trap as long as the peer lives, and the peer.
        pub(crate) fn into_parts(self) -> (TcpStream, TcpStream) {
            (self.socket, self.peer)
        }

        /// Leaves it in a connection's queue. As long as the peer lives that is given back, it is a trap.
        pub(crate) fn send(self, to: &Connection) -> Result<TcpStream, SocketError> {
            to.send(b"x", &[self.socket.as_fd()])?;
            Ok(self.peer)
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls on sockets that Miri does not know")]
    fn more_traps_than_threads_hold_up_nothing() {
        let mut peers = Vec::new();
        for _ in 0..3 * THREADS {
            let Trap { socket, peer } = Trap::new();
            run(move || drop(socket));
            peers.push(peer);
        }
        let (ours, theirs) = Connection::pair().unwrap();
        run(move || drop(ours));
        let closed = poll(&[theirs.as_fd()], Some(Duration::from_secs(30))).unwrap();
        assert_eq!(closed, [true], "it waits behind traps that take an hour");
        assert!(theirs.is_closed());
    }
}
