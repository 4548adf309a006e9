//! Any bytes as a packet: read or refused, and what is read is written the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::control_messages::Packet;

fuzz_target!(|bytes: &[u8]| {
    let Ok(packet) = Packet::decode(bytes) else {
        return;
    };
    let written = packet.encode();
    // A refusal's version is passed over; all else comes back, less what a newer minor added.
    assert!(written.len() <= bytes.len());
    assert_eq!(Packet::decode(&written).as_ref(), Ok(&packet));
});
