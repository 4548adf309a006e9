//! The unit in which memory of GPUs is offered: GiB or MiB.
//!
//! Read from the command line of who offers it and of who prints it. Must not know resources.

use std::fmt;
use std::str::FromStr;

/// In what memory is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryUnit {
    /// 1024 MiB.
    #[default]
    Gib,
    /// One MiB.
    Mib,
}

impl MemoryUnit {
    /// MiB of one.
    #[must_use]
    pub const fn mib(self) -> u64 {
        match self {
            Self::Gib => 1024,
            Self::Mib => 1,
        }
    }
}

impl fmt::Display for MemoryUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Gib => "GiB",
            Self::Mib => "MiB",
        })
    }
}

/// A unit that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a unit of memory: it is GiB or MiB")]
pub struct NoUnit(String);

impl FromStr for MemoryUnit {
    type Err = NoUnit;

    fn from_str(text: &str) -> Result<Self, NoUnit> {
        [Self::Gib, Self::Mib]
            .into_iter()
            .find(|unit| unit.to_string() == text)
            .ok_or_else(|| NoUnit(text.to_owned()))
    }
}
