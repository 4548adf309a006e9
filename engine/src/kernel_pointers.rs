//! What an engine can say of how a kernel reaches memory.
//!
//! Made by engines, read by whoever asks whether a launch can be done again. Must not know launches.

/// Through what a kernel reads and writes memory that others reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelPointers {
    /// What it reads.
    pub reads: Vec<Place>,
    /// What it writes.
    pub writes: Vec<Place>,
}

/// What addresses of a kernel are made of: of one or more of its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Offsets in the parameter block of all pointers, of 8 bytes, that may be in it, and maybe of what is no pointer.
    pub offsets: Vec<u32>,
    /// Whether it may lie below the pointer.
    pub is_lowered: bool,
}

impl Place {
    /// What stands at the offsets in a parameter block. `None` if that is too short.
    #[must_use]
    pub fn values(&self, parameters: &[u8]) -> Option<Vec<u64>> {
        let value = |&offset: &u32| {
            let rest = parameters.get(offset as usize..)?;
            rest.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
        };
        self.offsets.iter().map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_parameters() {
        let place = |offsets: &[u32]| Place {
            offsets: offsets.to_vec(),
            is_lowered: false,
        };
        let parameters: Vec<u8> = (0..12).collect();
        assert_eq!(
            place(&[0, 4]).values(&parameters),
            Some(vec![0x0706_0504_0302_0100, 0x0b0a_0908_0706_0504])
        );
        assert_eq!(place(&[0, 5]).values(&parameters), None);
        assert_eq!(place(&[u32::MAX]).values(&parameters), None);
    }
}
