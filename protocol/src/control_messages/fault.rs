//! Faults of clients' contexts: whose they are, and how many there were.
//!
//! Engines say whose a fault is, servers tell the daemon, which counts them and shows them. The rule is in
//! `docs/design/failure-model.md`. Must not know what a fault does.

use std::fmt;

use crate::codec::{alternatives, alternatives_as_fields, message};

alternatives! {
    /// What a client has to do with the fault that its context died of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Guilt: u8 {
        /// Its own work has faulted.
        Guilty = 0,
        /// Nobody can tell whose work it was, and it had kernels on the device.
        Suspect = 1,
        /// It had none, or its server has gone, and it has lost its context all the same.
        Innocent = 2,
    }
}

alternatives_as_fields!(Guilt: u8);

impl Guilt {
    /// In a word, as lists, logs and metrics have it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Guilty => "guilty",
            Self::Suspect => "suspect",
            Self::Innocent => "innocent",
        }
    }
}

impl fmt::Display for Guilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

message! {
    /// How many faults of a kind there were.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FaultCount {
        /// A CUresult.
        pub code: u32,
        /// Whose they were.
        pub guilt: Guilt,
        /// Contexts that died.
        pub count: u64,
    }
}
