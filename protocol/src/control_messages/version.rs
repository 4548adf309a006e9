//! Which protocol two builds speak, and whether they understand each other.
//!
//! Programs, daemon and servers ask here when they meet. Knows no message.

use crate::codec::message;
use crate::operations::{OPERATIONS, OperationClass};

message! {
    /// The protocol's version.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Version {
        /// Different majors do not understand each other.
        pub major: u16,
        /// Both sides take the lower one.
        pub minor: u16,
    }
}

/// The version that this build speaks.
pub const VERSION: Version = Version { major: 4, minor: 1 };

/// Major versions differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherMajor {
    /// What the other side speaks.
    pub theirs: Version,
}

impl std::fmt::Display for OtherMajor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "protocol versions differ: the other side speaks {}.{}, this side {}.{}; \
             use libcuda.so.1 and openmps of one release",
            self.theirs.major, self.theirs.minor, VERSION.major, VERSION.minor
        )
    }
}

impl std::error::Error for OtherMajor {}

/// The version that two sides speak with each other.
///
/// # Errors
/// When they are of different majors; the error's text names both versions.
pub fn negotiate(theirs: Version) -> Result<Version, OtherMajor> {
    agree(VERSION, theirs)
}

fn agree(ours: Version, theirs: Version) -> Result<Version, OtherMajor> {
    if theirs.major != ours.major {
        return Err(OtherMajor { theirs });
    }
    Ok(Version {
        major: ours.major,
        minor: ours.minor.min(theirs.minor),
    })
}

/// A number that tells whether two builds have the same table of operations (FNV-1a over its rows).
#[must_use]
pub fn fingerprint() -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    for operation in OPERATIONS {
        let row = operation.row();
        let class = match row.class {
            OperationClass::Post => 0,
            OperationClass::Create => 1,
            OperationClass::Stream => 2,
            OperationClass::Call => 3,
        };
        add(row.name.as_bytes());
        add(&row.number.to_le_bytes());
        add(&[0, row.version, class]);
        add(&(row.slots as u64).to_le_bytes());
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_take_the_lower_minor_and_another_major_is_refused_in_words() {
        let version = |major, minor| Version { major, minor };
        assert_eq!(agree(version(1, 3), version(1, 7)), Ok(version(1, 3)));
        assert_eq!(agree(version(1, 7), version(1, 3)), Ok(version(1, 3)));
        let refused = agree(version(1, 7), version(9, 3)).unwrap_err().to_string();
        let ours = format!("{}.{}", VERSION.major, VERSION.minor);
        assert!(
            refused.contains("9.3") && refused.contains(&ours),
            "{refused}"
        );
    }
}
