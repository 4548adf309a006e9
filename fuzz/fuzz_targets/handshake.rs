//! Any bytes as a packet: read or refused, and what is read is written the same again.
#![no_main]

use cuda_abi::facts::DeviceFacts;
use libfuzzer_sys::fuzz_target;
use transport::handshake::Packet;

/// Bytes of the fields that a peer of an older minor leaves out, at most.
const LEFT_OUT: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let Ok(packet) = Packet::decode(bytes) else {
        return;
    };
    let written = packet.encode();
    // A refusal's version is passed over; all else comes back, less what a newer minor added, and with the
    // fields that an older one has not, which are absent or empty: one a packet, or one a device.
    assert!(written.len() <= 2 * bytes.len() + LEFT_OUT);
    assert_eq!(Packet::decode(&written).as_ref(), Ok(&packet));
    if let Packet::Welcome(welcome) = &packet {
        let _ = DeviceFacts::decode_all(&welcome.facts);
    }
});
