//! A program that means harm. It does what its first argument says to the daemon or group of the directory in
//! its second, says a line when that is done, and stays until its input ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cuda_abi::CUresult;
use protocol::operations::{
    FILE_PACKET, Fill, HostAlloc, HostBarrier, ImageLoad, ImagePut, MemAlloc, MemInfo,
    STREAM_DEPTH, StreamCreate, Write,
};
use tests::hostile::client::{BareClient, client_greeting, connect};
use tests::hostile::descriptors::{Kind, every_kind, map_file, send_everywhere};
use tests::hostile::{fuse, journal};
use tests::program::{hear, say};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let directory = Path::new(&arguments[1]);
    let more = arguments.get(2).map_or("", String::as_str);
    match arguments[0].as_str() {
        "descriptors" => descriptors(directory, every_kind(&mut without)),
        "descriptors-in-user-namespace" => {
            // SAFETY: the call takes a number, and this process has one thread.
            if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
                return absent("a user namespace");
            }
            descriptors(directory, every_kind(&mut without));
        }
        "fuse" => slow_files(directory, Path::new(more)),
        "stop" => stop(directory, more.parse().expect("a stage")),
        "image-pieces" => image_pieces(directory),
        "text" => text(directory, &ptx_text(48 << 20)),
        "packed-text" => text(directory, &packed_text(228 << 20)),
        "host-memory" => host_memory(directory),
        "device-memory" => device_memory(directory),
        "records" => records(directory),
        "journal" => journal(directory, more),
        other => panic!("no attack {other:?}"),
    }
}

/// Says what this machine does not allow.
fn absent(what: &str) {
    say(&format!(
        "absent: {what}: {}",
        std::io::Error::last_os_error()
    ));
}

/// Says what an attack goes on without.
fn without(what: &str) {
    say(&format!("without: {what}"));
}

fn done() {
    say("done");
    hear();
}

fn attach(directory: &Path) -> BareClient {
    match BareClient::attach(directory) {
        Ok(client) => client.with_context(),
        Err(answer) => panic!("{answer:?}"),
    }
}

/// Leaves descriptors of every kind everywhere, and is then not the one who closes them last.
fn descriptors(directory: &Path, kinds: Vec<Kind>) {
    let left: Vec<_> = kinds
        .iter()
        .map(|kind| send_everywhere(directory, kind))
        .collect();
    let beside: Vec<_> = kinds.into_iter().flat_map(Kind::close).collect();
    done();
    drop((left, beside));
}

/// Has a file of a file system that never answers registered, and leaves more of it in queues.
fn slow_files(directory: &Path, folder: &Path) {
    let file = match fuse::open(folder) {
        Ok(file) => file,
        Err(why) => return say(&format!("absent: {why}")),
    };
    let sockets: Vec<_> = (0..4).map(|_| connect(directory)).collect();
    for socket in &sockets {
        socket.send(&client_greeting(), &[]).ok();
        socket.send(b"x", &[std::os::fd::AsFd::as_fd(&file)]).ok();
    }
    let clients: Vec<_> = (0..4).map(|_| Arc::new(attach(directory))).collect();
    for client in &clients {
        for _ in 0..2 {
            let fds = [std::os::fd::AsFd::as_fd(&file)];
            client.end.connection().send(FILE_PACKET, &fds).ok();
        }
        let client = Arc::clone(client);
        // Answered when the file system does, which is never.
        std::thread::spawn(move || client.end.call(&map_file(), &[]).map(drop));
    }
    std::thread::sleep(Duration::from_millis(300));
    drop(file);
    done();
}

/// Stops this process with SIGSTOP at a stage of its way into a session and out of it. Once it goes on, it does
/// so by the book.
fn stop(directory: &Path, stage: u32) {
    let at = |here: u32| {
        if stage == here {
            say("stops");
            // SAFETY: the call takes a number.
            assert_eq!(unsafe { libc::raise(libc::SIGSTOP) }, 0);
        }
    };
    let connection = connect(directory);
    at(0);
    connection
        .send(&client_greeting(), &[])
        .expect("the daemon listens");
    at(1);
    let client = BareClient::welcomed(connection).expect("a welcome");
    at(2);
    let client = client.with_context();
    at(3);
    let end = &client.end;
    let stream = StreamCreate {
        stream: 40,
        flags: 1,
        ..StreamCreate::default()
    };
    end.post(0, 0, &stream, &[]).expect("a session");
    end.post(40, 1, &HostBarrier { reserved: 0 }, &[])
        .expect("a session");
    for place in 2..200 {
        end.post(40, place, &Write::default(), &[&[7; 4096]])
            .expect("a session");
    }
    at(4);
    end.call(&MemInfo { device: 0 }, &[]).expect("a session");
    let bytes = 1 << 20;
    let memory = end
        .call(&MemAlloc { context: 0, bytes }, &[])
        .expect("a session");
    at(5);
    assert_eq!(memory.status, CUresult::SUCCESS);
    say("went on");
    hear();
}

/// Kernels of one short instruction after another.
fn ptx_text(bytes: usize) -> Vec<u8> {
    let mut text = HEAD.to_vec();
    text.extend(b"ret;".iter().cycle().take(bytes / 4 * 4));
    text.extend(b"}\n");
    text
}

const HEAD: &[u8] = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() {";

/// The same in a fatbin, by LZ4, which makes a 255th of it.
fn packed_text(bytes: usize) -> Vec<u8> {
    let length = |mut left: usize, into: &mut Vec<u8>| {
        while left >= 255 {
            into.push(255);
            left -= 255;
        }
        into.push(u8::try_from(left).expect("below 255"));
    };
    // The head and one instruction as they are, then what is four bytes before, over and over; then the last
    // bytes, which LZ4 has as they are.
    let first = [HEAD, b"ret;"].concat();
    let last = b"ret;ret;ret;ret;}\n";
    let repeated = bytes / 4 * 4;
    let mut packed = vec![0xFF];
    length(first.len() - 15, &mut packed);
    packed.extend(&first);
    packed.extend(4_u16.to_le_bytes());
    length(repeated - 4 - 15, &mut packed);
    packed.push(0xF0);
    length(last.len() - 15, &mut packed);
    packed.extend(last);
    let whole = first.len() + repeated + last.len();
    let short = |number: usize| u32::try_from(number).expect("it is short").to_le_bytes();
    let stored = packed.len().next_multiple_of(8);
    let mut image = vec![0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0];
    image.extend((64 + stored as u64).to_le_bytes());
    // PTX, by LZ4, of compute_75.
    image.extend([1, 0, 1, 1, 64, 0, 0, 0]);
    image.extend((stored as u64).to_le_bytes());
    image.extend(short(packed.len()));
    image.extend([0, 0, 0, 0, 0, 0, 9, 0]);
    image.extend(short(75));
    image.extend([0; 8]);
    image.extend(0x2011_u64.to_le_bytes());
    image.extend([0; 8]);
    image.extend((whole as u64).to_le_bytes());
    packed.resize(stored, 0);
    image.extend(packed);
    image
}

/// Sends an image in pieces.
fn put(client: &BareClient, image: u64, bytes: &[u8]) {
    const PIECE: usize = 1 << 20;
    let total = bytes.len() as u64;
    let chunk = client
        .end
        .staging()
        .allocate(PIECE)
        .expect("staging memory");
    for (index, piece) in bytes.chunks(PIECE).enumerate() {
        chunk.copy_in(0, piece);
        let put = ImagePut {
            image,
            total,
            offset: (index * PIECE) as u64,
            staging: chunk.offset(),
            bytes: piece.len() as u64,
        };
        client.end.post(0, 0, &put, &[]).expect("a session");
        // The piece is taken before this is answered.
        client
            .end
            .call(&MemInfo { device: 0 }, &[])
            .expect("a session");
    }
}

/// Has a text loaded that becomes far more than it is.
fn text(directory: &Path, bytes: &[u8]) {
    let client = attach(directory);
    put(&client, 1, bytes);
    let load = ImageLoad {
        image: 1,
        ..ImageLoad::default()
    };
    let answer = client.end.call(&load, &[]).expect("a session");
    say(&format!("{} {}", answer.status.0, answer.fields.status));
    done();
}

/// A GiB of images that are never loaded.
fn image_pieces(directory: &Path) {
    let client = attach(directory);
    let bytes = vec![7; 16 << 20];
    for image in 1..=64 {
        put(&client, image, &bytes);
    }
    done();
}

/// Takes page-locked memory until there is no more, and touches all of it.
fn host_memory(directory: &Path) {
    fill(&attach(directory), |client, bytes| {
        let request = HostAlloc {
            bytes,
            ..HostAlloc::default()
        };
        let answer = client.end.call(&request, &[]).expect("a session");
        (answer.status == CUresult::SUCCESS).then_some(answer.fields.address)
    });
}

/// Takes device memory until there is no more, and has all of it written to.
fn device_memory(directory: &Path) {
    fill(&attach(directory), |client, bytes| {
        let request = MemAlloc { context: 0, bytes };
        let answer = client.end.call(&request, &[]).expect("a session");
        (answer.status == CUresult::SUCCESS).then_some(answer.fields.address)
    });
}

fn fill(client: &BareClient, take: impl Fn(&BareClient, u64) -> Option<u64>) {
    let mut place = 0;
    let mut taken = 0;
    for bytes in [256 << 20, 16 << 20, 1 << 20] {
        while let Some(to) = take(client, bytes) {
            let fill = Fill {
                to,
                pitch: bytes,
                value: 7,
                element: 4,
                width: bytes / 4,
                height: 1,
            };
            place += 1;
            client.end.post(0, place, &fill, &[]).expect("a session");
            client.end.wait(0, place).expect("a session");
            taken += bytes >> 20;
        }
    }
    say(&format!("{taken} MiB"));
    done();
}

/// Has its server end, and tells the next one a lie. Says when it is there, when it has lied and when it is ended.
fn journal(directory: &Path, lie: &str) {
    let client = attach(directory);
    let bytes = 1 << 20;
    let memory = client.end.call(&MemAlloc { context: 0, bytes }, &[]);
    let memory = memory.expect("a session");
    assert_eq!(memory.status, CUresult::SUCCESS);
    say("ready");
    journal::tell(&client, lie);
    say("told");
    while !client.end.connection().is_closed() {
        std::thread::sleep(Duration::from_millis(5));
    }
    say("ended");
    hear();
}

/// Posts work behind gates that never open, until the server reads no further.
fn records(directory: &Path) {
    let client = Arc::new(attach(directory));
    let posted = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (poster, count) = (Arc::clone(&client), Arc::clone(&posted));
    std::thread::spawn(move || {
        for slot in 40..4000 {
            let stream = StreamCreate {
                stream: slot,
                flags: 1,
                ..StreamCreate::default()
            };
            let end = &poster.end;
            end.post(0, 0, &stream, &[]).expect("a session");
            end.post(slot, 1, &HostBarrier { reserved: 0 }, &[])
                .expect("a session");
            for place in 2..=STREAM_DEPTH {
                end.post(slot, place, &Write::default(), &[&[7; 16 << 10]])
                    .expect("a session");
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    });
    let mut before = u64::MAX;
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let now = posted.load(std::sync::atomic::Ordering::Relaxed);
        if std::mem::replace(&mut before, now) == now {
            break;
        }
    }
    done();
}
