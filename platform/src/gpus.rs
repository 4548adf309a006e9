//! Devices and processes, as everything here wants them.
//!
//! Filled by `openmps/src/machine.rs` from the daemon or an engine. Plain data: it must not know where a fact came
//! from.

use std::fmt;
use std::str::FromStr;

/// Bytes of a MiB, the unit of all lists.
pub const MIB: u64 = 1 << 20;

/// Who may have a context on a device, beside an MPS server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ComputeMode {
    /// Everybody.
    #[default]
    Default,
    /// One thread; CUDA gave it up long ago and treats it as one process.
    ExclusiveThread,
    /// Nobody.
    Prohibited,
    /// One process.
    ExclusiveProcess,
}

impl ComputeMode {
    const ALL: [Self; 4] = [
        Self::Default,
        Self::ExclusiveThread,
        Self::Prohibited,
        Self::ExclusiveProcess,
    ];

    /// CUDA's and NVML's number of it.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Default => 0,
            Self::ExclusiveThread => 1,
            Self::Prohibited => 2,
            Self::ExclusiveProcess => 3,
        }
    }

    /// The mode with this number.
    #[must_use]
    pub fn numbered(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.number() == number)
    }

    /// As it is asked for: `EXCLUSIVE_PROCESS`.
    #[must_use]
    pub fn argument(self) -> &'static str {
        match self {
            Self::Default => "DEFAULT",
            Self::ExclusiveThread => "EXCLUSIVE_THREAD",
            Self::Prohibited => "PROHIBITED",
            Self::ExclusiveProcess => "EXCLUSIVE_PROCESS",
        }
    }
}

impl fmt::Display for ComputeMode {
    /// As lists show it, and as scripts compare it: `Exclusive_Process`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Default => "Default",
            Self::ExclusiveThread => "Exclusive_Thread",
            Self::Prohibited => "Prohibited",
            Self::ExclusiveProcess => "Exclusive_Process",
        })
    }
}

/// A compute mode that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no compute mode: it is DEFAULT (0), EXCLUSIVE_THREAD (1), PROHIBITED (2) or \
     EXCLUSIVE_PROCESS (3)"
)]
pub struct NoMode(String);

impl FromStr for ComputeMode {
    type Err = NoMode;

    /// Reads a name, in any case, or a number.
    fn from_str(text: &str) -> Result<Self, NoMode> {
        Self::ALL
            .into_iter()
            .find(|mode| {
                mode.argument().eq_ignore_ascii_case(text) || mode.number().to_string() == text
            })
            .ok_or_else(|| NoMode(text.to_owned()))
    }
}

/// A device's place on the bus; the function is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress {
    /// The domain.
    pub domain: u32,
    /// The bus.
    pub bus: u32,
    /// The device.
    pub device: u32,
}

impl PciAddress {
    /// Without the domain, in lower case: `0a:00.0`, as lspci and Cloudpods write it.
    #[must_use]
    pub fn short(self) -> String {
        format!("{:02x}:{:02x}.0", self.bus, self.device)
    }

    /// As directories of the kernel are named: `0000:0a:00.0`.
    #[must_use]
    pub fn kernel(self) -> String {
        format!("{:04x}:{}", self.domain, self.short())
    }
}

impl fmt::Display for PciAddress {
    /// As nvidia-smi writes it: `00000000:0A:00.0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!(
            "{:08X}:{:02X}:{:02X}.0",
            self.domain, self.bus, self.device
        ))
    }
}

/// A text that is no PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a PCI address such as 0000:0a:00.0")]
pub struct NoAddress(String);

impl FromStr for PciAddress {
    type Err = NoAddress;

    /// Reads it with or without domain and function, in either case.
    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let none = || NoAddress(text.to_owned());
        let number = |part: &str, digits: usize| {
            let fits = (1..=digits).contains(&part.len())
                && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            fits.then(|| u32::from_str_radix(part, 16).ok())
                .flatten()
                .ok_or_else(none)
        };
        let (place, function) = text.split_once('.').unwrap_or((text, "0"));
        number(function, 1)?;
        let (rest, device) = place.rsplit_once(':').ok_or_else(none)?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        Ok(Self {
            domain: number(domain, 8)?,
            bus: number(bus, 2)?,
            device: number(device, 2)?,
        })
    }
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Its number, from 0.
    pub index: u32,
    /// `GPU-…`
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// Its place on the bus.
    pub pci: PciAddress,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes of it that are taken, where that is known.
    pub used: Option<u64>,
    /// Who may have a context on it.
    pub mode: ComputeMode,
}

impl Gpu {
    /// Whole MiB of its memory.
    #[must_use]
    pub fn mib(&self) -> u64 {
        self.memory / MIB
    }

    /// Whether a word of a command line names it: its number, its UUID, or its address.
    #[must_use]
    pub fn is_named(&self, word: &str) -> bool {
        word == self.index.to_string()
            || word.eq_ignore_ascii_case(&self.uuid)
            || word.contains(':') && word.parse() == Ok(self.pci)
    }
}

/// A process on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// The device's number.
    pub gpu: u32,
    /// Its process id, 0 where it cannot be seen from here.
    pub pid: i32,
    /// What it is called.
    pub name: String,
    /// What it is called besides.
    pub label: Option<String>,
    /// Whether it is a client of an MPS server, not the server.
    pub client: bool,
    /// Bytes of the device's memory that it has, where that is known.
    pub memory: Option<u64>,
    /// The part of the multiprocessors' time that it has had lately, from 0 to 1, where that was measured.
    pub multiprocessors: Option<f64>,
}

/// One of the equal parts of a device. Everybody who divides one does it by whole numbers, so some of
/// it is left over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// MiB of memory.
    pub mib: u64,
    /// Active thread percentage.
    pub percentage: u32,
}

/// The most parts that a device can be divided into: each has one percent of its threads.
pub const MOST_SLICES: u32 = 100;

impl Slice {
    /// One of `parts` equal parts of a device with so many MiB; None if a part would be nothing.
    #[must_use]
    pub fn of(mib: u64, parts: u32) -> Option<Self> {
        let slice = Self {
            mib: mib.checked_div(u64::from(parts))?,
            percentage: 100_u32.checked_div(parts)?,
        };
        (slice.mib > 0 && slice.percentage > 0).then_some(slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_divided_as_everybody_divides_them() {
        for (mib, parts, slice_mib, percentage) in [
            (23040, 4, 5760, 25),
            (15360, 10, 1536, 10),
            (40960, 3, 13653, 33),
            (81559, 7, 11651, 14),
        ] {
            let slice = Slice::of(mib, parts).unwrap();
            assert_eq!((slice.mib, slice.percentage), (slice_mib, percentage));
        }
        assert_eq!(Slice::of(1000, 0), None);
        assert_eq!(Slice::of(1000, MOST_SLICES + 1), None);
        assert_eq!(Slice::of(3, 4), None);
    }

    #[test]
    fn addresses_are_read_in_every_spelling() {
        let expected = PciAddress {
            domain: 0,
            bus: 10,
            device: 0,
        };
        for text in ["00000000:0A:00.0", "0000:0a:00.0", "0a:00.0", "0A:00"] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in [
            "",
            ":",
            "0a",
            "0g:00.0",
            "0a:00.",
            "0a:+1.0",
            "0:0:0:0a:00.0",
        ] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
        assert_eq!(expected.to_string(), "00000000:0A:00.0");
        assert_eq!(expected.short(), "0a:00.0");
        assert_eq!(expected.kernel(), "0000:0a:00.0");
    }

    #[test]
    fn modes_are_read_by_name_and_number() {
        assert_eq!("3".parse(), Ok(ComputeMode::ExclusiveProcess));
        assert_eq!(
            "exclusive_process".parse(),
            Ok(ComputeMode::ExclusiveProcess)
        );
        assert!("EXCLUSIVE".parse::<ComputeMode>().is_err());
        for mode in ComputeMode::ALL {
            assert_eq!(ComputeMode::numbered(mode.number()), Some(mode));
            assert_eq!(mode.argument().parse(), Ok(mode));
        }
    }
}
