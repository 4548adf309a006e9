//! What can be too long for one packet: command output and views go in several, and a remark is cut.
//!
//! The daemon sends them so; who receives puts them together. Must not know what is in the text or the lists.

use super::packet::{PACKET_MAX, Packet};
use super::view::View;

/// Processes of a packet: their names have 256 characters at most, of four bytes each, labels, containers and pods 300 bytes
/// together, and other fields less than 400. Kinds of faults, in the first packet, are 64 at most, of 13 bytes each.
const PROCESSES: usize = 34;

/// The packets that carry a view.
#[must_use]
pub fn view_packets(mut view: View) -> Vec<Packet> {
    let mut parts = Vec::new();
    while view.processes.len() > PROCESSES {
        let rest = view.processes.split_off(PROCESSES);
        let part = std::mem::replace(
            &mut view,
            View {
                processes: rest,
                ..View::default()
            },
        );
        parts.push(part);
    }
    parts.push(view);
    let last = parts.len() - 1;
    let packets = parts.into_iter().enumerate();
    packets
        .map(|(at, view)| Packet::View {
            last: at == last,
            view,
        })
        .collect()
}

/// The packet that carries a remark on a command, as much of it as fits.
#[must_use]
pub fn remark(text: &str) -> Packet {
    let text = &text[..text.floor_char_boundary(PART)];
    Packet::Remark {
        text: text.to_owned(),
    }
}

/// Bytes of text in a packet at most: leaves room for its other fields.
const PART: usize = PACKET_MAX - 64;

/// The packets that carry a command's output.
#[must_use]
pub fn command_output(exit: u8, text: &str) -> Vec<Packet> {
    let mut packets = Vec::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_at(rest.floor_char_boundary(PART));
        rest = after;
        let last = rest.is_empty();
        packets.push(Packet::CommandOutput {
            exit,
            last,
            text: part.to_owned(),
        });
        if last {
            return packets;
        }
    }
}
