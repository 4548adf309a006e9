//! What the daemon waits for, as the kernel's events name it.
//!
//! Made where something is watched, read by the event loop. Must not know what is done about an event.

use crate::servers::registry::ServerId;

/// What a descriptor is for. Kept in the kernel's event as its number with the kind in the low bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpollToken {
    /// Somebody connects.
    Listener,
    /// A signal came.
    Signals,
    /// A connection that has not said yet what it is for.
    HalfOpen(u64),
    /// A server says something.
    Server(ServerId),
    /// A server's process ended.
    Process(ServerId),
    /// Somebody connects to the socket for the owner.
    Privileged,
    /// Somebody wrote to the log's FIFO.
    LogPipe,
    /// A child ended, and perhaps not one of ours.
    Children,
    /// Somebody connects to the socket of a group.
    Group(u32),
    /// The process ended of a server that a former daemon left, by its slot.
    Orphan(u32),
    /// A process that looks at the devices prints what it has found, or has ended.
    DeviceScan,
    /// The page's process ended.
    Page,
    /// The underlay's supervisor says something, or has ended.
    Underlay(u64),
}

const KIND_BITS: u32 = 4;

impl EpollToken {
    /// The number in the kernel's event.
    #[must_use]
    pub const fn encode(self) -> u64 {
        let (kind, id) = match self {
            Self::Listener => (0, 0),
            Self::Signals => (1, 0),
            Self::HalfOpen(id) => (2, id),
            Self::Server(id) => (3, id),
            Self::Process(id) => (4, id),
            Self::Privileged => (5, 0),
            Self::LogPipe => (6, 0),
            Self::Group(number) => (8, number as u64),
            Self::Orphan(slot) => (9, slot as u64),
            Self::DeviceScan => (10, 0),
            Self::Underlay(number) => (11, number),
            Self::Page => (12, 0),
            Self::Children => (7, 0),
        };
        id << KIND_BITS | kind
    }

    /// What a number is that [`Self::encode`] made.
    #[must_use]
    pub const fn decode(word: u64) -> Self {
        let id = word >> KIND_BITS;
        match word & ((1 << KIND_BITS) - 1) {
            0 => Self::Listener,
            1 => Self::Signals,
            2 => Self::HalfOpen(id),
            3 => Self::Server(id),
            4 => Self::Process(id),
            5 => Self::Privileged,
            6 => Self::LogPipe,
            8 => Self::Group(id as u32),
            9 => Self::Orphan(id as u32),
            10 => Self::DeviceScan,
            11 => Self::Underlay(id),
            12 => Self::Page,
            _ => Self::Children,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_come_back_from_their_words() {
        for source in [
            EpollToken::Listener,
            EpollToken::Signals,
            EpollToken::HalfOpen(7),
            EpollToken::Server(1 << 40),
            EpollToken::Process(0),
            EpollToken::Privileged,
            EpollToken::LogPipe,
            EpollToken::Children,
            EpollToken::Group(u32::MAX),
            EpollToken::Orphan(255),
            EpollToken::DeviceScan,
            EpollToken::Page,
            EpollToken::Underlay(1 << 40),
        ] {
            assert_eq!(EpollToken::decode(source.encode()), source);
        }
    }
}
