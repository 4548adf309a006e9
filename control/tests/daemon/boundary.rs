//! What a peer can do to the daemon and to its servers with what it sends beside bytes. Everything here is
//! done twice: as the kernel is, and as one before Linux 6.16 is, which cannot refuse descriptors.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use transport::socket::{Connection, SocketError};

use crate::harness::{Rig, attach, named, say_hello, until};

crate::harness::tests! {
    descriptors_that_take_an_hour_to_close_hold_up_nobody
    descriptors_left_in_a_session_hold_up_no_server
}

/// How long what must not wait may take on a busy machine. The traps take an hour.
const SOON: Duration = Duration::from_secs(30);

/// Does something on a system that does not know SO_PASSRIGHTS. Processes that are started there do not
/// know it either.
fn on_an_older_kernel(act: impl FnOnce() + Send) {
    use std::ffi::{c_int, c_ulong, c_void};

    /// Of the classic BPF.
    #[repr(C)]
    struct Step(u16, u8, u8, u32);
    #[repr(C)]
    struct Program {
        length: u16,
        steps: *const Step,
    }
    unsafe extern "C" {
        fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    }
    const LOAD: u16 = 0x20;
    const IS: u16 = 0x15;
    const RETURN: u16 = 0x06;
    #[cfg(target_arch = "x86_64")]
    const SETSOCKOPT: u32 = 54;
    #[cfg(target_arch = "aarch64")]
    const SETSOCKOPT: u32 = 208;
    const SO_PASSRIGHTS: u32 = 83;
    const ENOPROTOOPT: u32 = 92;
    // Of struct seccomp_data: the system call's number, and its third argument's low half.
    let steps = [
        Step(LOAD, 0, 0, 0),
        Step(IS, 0, 3, SETSOCKOPT),
        Step(LOAD, 0, 0, 32),
        Step(IS, 0, 1, SO_PASSRIGHTS),
        Step(RETURN, 0, 0, 0x0005_0000 | ENOPROTOOPT),
        Step(RETURN, 0, 0, 0x7FFF_0000),
    ];
    let filter = || {
        let program = Program {
            length: steps.len().try_into().unwrap(),
            steps: steps.as_ptr(),
        };
        // SAFETY: numbers, and a program that lives until both calls are over. The filter is this
        // thread's and its children's.
        let set = unsafe {
            prctl(38, 1, 0, 0, 0) == 0
                && prctl(
                    22,
                    2,
                    (&raw const program).cast::<c_void>() as c_ulong,
                    0,
                    0,
                ) == 0
        };
        assert!(set, "{}", std::io::Error::last_os_error());
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            filter();
            act();
        });
        thread.join().unwrap();
    });
}

/// A daemon on this kernel, and one on an older one.
fn daemons() -> [Rig; 2] {
    let (new, old) = (Rig::new(), Rig::without_daemon());
    on_an_older_kernel(|| old.start());
    [new, old]
}

/// Sends a descriptor whose last close takes an hour, and closes all others: a socket that has data for a
/// peer that reads none, which is returned. None if the kernel refuses to pass it.
fn trap(to: &Connection) -> Option<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, 4096).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&peer, 4096).unwrap();
    // Room that comes when the peer's machine has taken something is filled too.
    let moment = Some(Duration::from_millis(20));
    socket.set_write_timeout(moment).unwrap();
    while socket.write(&[0; 4096]).is_ok() {}
    let hour = Some(Duration::from_secs(3600));
    rustix::net::sockopt::set_socket_linger(&socket, hour).unwrap();
    let sent = to.send(b"x", &[socket.as_fd()]);
    match sent {
        Ok(()) => {
            // Ours is the last if the other end was quick.
            std::thread::spawn(move || drop(socket));
            Some(peer)
        }
        Err(error) => {
            // Disconnected already, or refused.
            assert!(
                matches!(
                    error,
                    SocketError::Closed | SocketError::System(_, rustix::io::Errno::PERM)
                ),
                "{error}"
            );
            rustix::net::sockopt::set_socket_linger(&socket, None).unwrap();
            None
        }
    }
}

/// Does something that must not wait for the traps that these are the peers of.
fn at_once<T: Send>(traps: &mut Vec<TcpStream>, what: &str, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (done, is_done) = channel();
        scope.spawn(move || done.send(act()));
        is_done.recv_timeout(SOON).unwrap_or_else(|_| {
            // Then they are none any more, and it comes to an end.
            traps.clear();
            panic!("{what} waits for a trap, which takes an hour");
        })
    })
}

/// Others are served: who gives a command, who is a client, at the daemon's socket and a group's.
fn others_are_served(rig: &Rig, group: &Path, traps: &mut Vec<TcpStream>) {
    at_once(traps, "a command", || {
        assert_eq!(rig.ask("get_default_active_thread_percentage"), "100.0\n");
    });
    at_once(traps, "a client", || rig.hold());
    at_once(traps, "a group's client", || {
        let mut held = rig.hold_in(group.to_owned(), None, &[]);
        assert_eq!(held.line(), "ready");
    });
}

fn descriptors_that_take_an_hour_to_close_hold_up_nobody() {
    for (rig, is_old) in daemons().into_iter().zip([false, true]) {
        rig.said("group add theirs");
        let group = rig.pipe().join("groups/theirs");
        let mut peers = Vec::new();
        for _ in 0..20 {
            for place in [rig.pipe(), group.clone()] {
                // In the place of a greeting, behind one, and behind a question.
                let first = Connection::connect(place.join("control")).unwrap();
                peers.extend(trap(&first));
                let second = Connection::connect(place.join("control")).unwrap();
                say_hello(&second, named("trap"));
                peers.extend(trap(&second));
            }
        }
        others_are_served(&rig, &group, &mut peers);
        let told = rig.control_log();
        let told = told.contains("A connection sent descriptors, which nobody takes here");
        if is_old {
            assert!(!peers.is_empty() && told);
        } else if peers.is_empty() {
            assert!(!told, "the kernel refused all");
        }
    }
}

fn descriptors_left_in_a_session_hold_up_no_server() {
    for rig in daemons() {
        rig.said("group add theirs");
        let group = rig.pipe().join("groups/theirs");
        let mut peers = Vec::new();
        for _ in 0..12 {
            let connection = rig.connect();
            let client = attach(&connection, named("trap")).map_err(|(_, text)| text);
            peers.extend((0..2).filter_map(|_| trap(&connection)));
            drop(client);
        }
        assert_eq!(peers.len(), 24, "a session may send files to be registered");
        let [server] = rig.servers()[..] else {
            panic!("one server");
        };
        at_once(&mut peers, "the end of the sessions", || {
            until("they are gone", || {
                rig.ask(&format!("get_client_list {server}")).is_empty()
            });
        });
        others_are_served(&rig, &group, &mut peers);
        assert_eq!(rig.servers()[0], server, "the same one");
        at_once(&mut peers, "the server's end", || {
            rig.said(&format!("shutdown_server {server}"))
        });
        until("it ends", || !crate::harness::runs(server));
    }
}
