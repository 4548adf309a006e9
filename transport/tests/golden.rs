//! The bytes of records and replies, as they were released: old clients live in containers and
//! wheels. A change here is a change of the protocol. After one that is meant (a new row, a new
//! trailing field with its row's version), write the file again and look at the difference:
//!
//! ```text
//! UPDATE=1 cargo test -p transport --test golden
//! ```

use cuda_abi::CUresult;
use protocol::operations::{self, Request};
use protocol::wire::Fields;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use transport::memory::Mapping;
use transport::session::{ClientEnd, Publisher, ServerEnd, SessionMemory};
use transport::socket::Connection;

/// Where the layout has the first record and the first reply slot.
const RECORDS: usize = 36864;
const REPLIES: usize = 167_936;

fn compare(name: &str, now: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, now).expect("the golden file can be written");
    }
    let released = std::fs::read_to_string(&path).unwrap_or_default();
    for (released, now) in released.lines().zip(now.lines()) {
        assert_eq!(
            released, now,
            "bytes of {name} changed; see the beginning of tests/golden.rs"
        );
    }
    assert_eq!(
        released, now,
        "lines of {name} changed; see the beginning of tests/golden.rs"
    );
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes_at(memory: &Mapping, offset: usize, words: usize) -> String {
    let words = memory.words(offset, words).iter();
    hex(&words
        .flat_map(|word| word.load(Ordering::Acquire).to_le_bytes())
        .collect::<Vec<_>>())
}

/// Fields with the values 1, 2, 3 and so on, which every type can hold.
fn counted<F: Fields>() -> (F, Vec<u64>) {
    let slots: Vec<u64> = (1..=F::SLOTS as u64).collect();
    (F::read(&slots).expect("small numbers fit"), slots)
}

/// The record of a request and the reply to it, as they lie in the shared memory.
fn row<R: Request>(text: &mut String) {
    let memory = SessionMemory::create(4096).expect("room for a session");
    let (ours, _theirs) = Connection::pair().expect("a pair of sockets");
    let (_, publisher) = ServerEnd::new(&memory).expect("a server's end").split();
    let client = ClientEnd::new(&memory, ours).expect("a client's end");
    let ring = Mapping::map_read_only(&memory.ring).expect("room for a mapping");
    let name = R::OPCODE.row().name;

    let (request, _) = counted::<R>();
    client
        .post(0x0102_0304, 0x0506_0708_090a, &request, &[b"da", b"ta!"])
        .expect("room");
    let words = ring.word(0).load(Ordering::Acquire) as usize;
    let _ = writeln!(text, "{name} request {}", bytes_at(&ring, RECORDS, words));
    reply::<R>(&memory, &publisher, name, text);
}

fn reply<R: Request>(memory: &SessionMemory, publisher: &Publisher, name: &str, text: &mut String) {
    if R::CLASS == operations::OperationClass::Call {
        let (_, slots) = counted::<R::Reply>();
        publisher
            .reply(0, 11, CUresult(2), &slots, b"long")
            .expect("it fits");
        let status = Mapping::map_read_only(&memory.status).expect("room for a mapping");
        let _ = writeln!(text, "{name} reply {}", bytes_at(&status, REPLIES, 28));
    }
}

macro_rules! rows {
    ($($group:ident { $(
        $(#[$doc:meta])*
        $class:ident $number:literal $version:literal $method:ident($request:ident $fields:tt) -> $reply:ident $reply_fields:tt;
    )* })*) => {
        fn rows(text: &mut String) {
            $($( row::<operations::$request>(text); )*)*
        }
    };
}

protocol::for_each_operation!(rows);

#[test]
fn records_and_replies_are_the_released_bytes() {
    let mut text = String::new();
    rows(&mut text);
    assert!(text.lines().count() > operations::OPERATIONS.len());
    compare("operations.txt", &text);
}
