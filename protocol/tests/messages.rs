//! Control messages made of anything: what is written is read again, what is not is refused.

use proptest::prelude::*;
use protocol::control_messages::{
    ClientFields, Hello, PACKET_MAX, Packet, Purpose, VERSION, command_output,
};

proptest! {
    #[test]
    fn any_bytes_are_a_packet_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u16..24) {
        let _ = Packet::decode(&bytes);
        let mut framed = b"OMPS".to_vec();
        framed.extend(kind.to_le_bytes());
        framed.extend(VERSION.major.to_le_bytes());
        framed.extend(VERSION.minor.to_le_bytes());
        framed.extend(bytes);
        if let Ok(packet) = Packet::decode(&framed) {
            prop_assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
        }
    }

    #[test]
    fn hellos_come_back(program: String, percentage: Option<String>, line: String, features: u64) {
        let client = ClientFields { program, percentage, ..ClientFields::default() };
        for purpose in [Purpose::Client(client), Purpose::Command { line }] {
            let packet = Packet::Hello(Hello { version: VERSION, fingerprint: 1, features, purpose });
            prop_assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
        }
    }

    #[test]
    fn long_output_is_cut_into_packets(unit in "[a-zé€😀]{1,40}", times in 0usize..6000) {
        let text = unit.repeat(times);
        let packets = command_output(3, &text);
        let mut joined = String::new();
        for (n, packet) in packets.iter().enumerate() {
            prop_assert!(packet.encode().len() <= PACKET_MAX);
            let Packet::CommandOutput { exit: 3, last, text } = packet else { unreachable!() };
            prop_assert_eq!(*last, n + 1 == packets.len());
            joined += text;
        }
        prop_assert_eq!(joined, text);
    }
}
