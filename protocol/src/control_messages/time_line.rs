//! How somebody has the clients of a daemon recorded as time lines: what it asks, whom the daemon then names, and what
//! servers send of them over the same connection.
//!
//! `openmps trace` asks, `control` answers, `server` records. What is in a part is [`operations`](crate::operations)' and the
//! crate `trace`'s. Must not know files.

use crate::codec::{alternatives, alternatives_as_fields, message};

message! {
    /// Which clients are to be recorded, as long as the connection lasts.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct TimeLineRequest {
        /// The client of this process id, as the asker knows it; without one, all that it may see, also those to come.
        pub pid: Option<i32>,
    }

    /// A client that is recorded from now on.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct RecordedClient {
        /// Its session.
        pub session: u64,
        /// Its process id as the asker knows it, or 0 where that is not known.
        pub pid: i32,
        /// Its user.
        pub uid: u32,
        /// Its program's name.
        pub program: String,
    }
}

alternatives! {
    /// What a server sends of a client that is recorded.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum RecordedPart: u8 {
        /// When the device worked: a piece for a [`SpanReader`](crate::operations::SpanReader).
        Spans(bytes: Box<[u8]>) = 0,
        /// What the client's library told of its calls and work. The client may have written anything.
        Told(bytes: Box<[u8]>) = 1,
        /// Spans, or what was told, for which there was no room.
        Dropped {
            /// How many, since the last such part.
            count: u64,
        } = 2,
        /// The client is gone, or not recorded any more; nothing follows of it.
        Over {
            /// Why it is not recorded any more, in words, or nothing.
            text: String,
        } = 3,
    }
}

alternatives_as_fields!(RecordedPart: u8);
