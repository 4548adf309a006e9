//! Why work that a client has put into a stream is held back, as spans of time lines tell it.
//!
//! Servers and engines say it, and who makes files of time lines reads it. Must not know how it is shown.

/// What is added to a [`HoldReason`]'s number for a span's kind: no work, but that the operation was held back meanwhile.
const SPAN_HELD: u64 = 16;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal $text:literal,)*) => {
        /// What holds an operation back that could run otherwise.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum HoldReason {
            $($(#[$doc])* $name = $number,)*
        }

        impl HoldReason {
            const ALL: &[Self] = &[$(Self::$name),*];

            /// In words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
    /// Other clients have the device.
    Others = 0 "others have the device",
    /// The same, of a client below normal, while clients of normal priority have work.
    Priority = 1 "clients of normal priority have the device",
    /// The client's part of the device is used up, or being changed.
    Limit = 2 "its limit is reached",
    /// The device's gate is closed: code is loaded, or memory given back.
    Loads = 3 "the device is kept quiet to load code or free memory",
    /// The driver has as much of the stream as it is given at a time.
    Depth = 4 "the driver has enough of this stream",
    /// It waits for an event or for another stream.
    Event = 5 "waits for an event or another stream",
    /// The legacy stream and blocking streams wait for each other.
    LegacyStream = 6 "waits as the default stream asks",
    /// A kernel before it in its connection waits.
    Connection = 7 "waits in its connection (CUDA_DEVICE_MAX_CONNECTIONS)",
    /// The client has not called a host function yet.
    HostFunction = 8 "waits for a host function",
    /// It waits for a value in memory.
    Value = 9 "waits for a value in memory",
    /// The stream that had its place before has work.
    FormerStream = 10 "waits for the end of the stream that had its place",
}

impl HoldReason {
    /// The kind of a span that says this.
    #[must_use]
    pub const fn span_kind(self) -> u64 {
        SPAN_HELD + self as u64
    }

    /// What a span says of such a kind; `None` where it tells of work.
    #[must_use]
    pub fn of_span(kind: u64) -> Option<Self> {
        let number = kind.checked_sub(SPAN_HELD)?;
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Whether a limit that was set for the client is why.
    #[must_use]
    pub const fn is_own_limit(self) -> bool {
        matches!(self, Self::Priority | Self::Limit)
    }

    /// Whether other clients are why: that is a client's wait for others.
    #[must_use]
    pub const fn is_others(self) -> bool {
        matches!(self, Self::Others | Self::Priority)
    }

    /// Whether the order of the client's own work is why, and not the device.
    #[must_use]
    pub const fn is_order(self) -> bool {
        self as u64 >= Self::Event as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_tell_reasons() {
        for (number, reason) in (0..).zip(HoldReason::ALL) {
            assert_eq!(*reason as u64, number, "they are in order");
            assert_eq!(HoldReason::of_span(reason.span_kind()), Some(*reason));
        }
        for kind in [0, 1, 2, 3, 15, 27, u64::MAX] {
            assert_eq!(HoldReason::of_span(kind), None, "{kind}");
        }
        assert!(HoldReason::Event.is_order() && !HoldReason::Depth.is_order());
    }
}
