//! The grammar of the limits that stand in a client's or the daemon's environment, and in commands:
//! `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`, `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`,
//! `CUDA_MPS_CLIENT_PRIORITY`, `OPENMPS_KERNEL_TIME_LIMIT`, and what of `OPENMPS_ISOLATION` is a client's.
//!
//! What does not parse is an error, never "no limit": whoever asks must refuse it loudly. Knows no
//! devices: whether a named one exists is for those who have them.

use std::fmt;
use std::time::Duration;

/// Why a limit was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// Not a number above 0 and up to 100.
    Percentage(String),
    /// Not `device=size`.
    Entry(String),
    /// Not a whole number above 0 with K, M, G (and B), or none.
    Size(String),
    /// Neither 0 nor 1.
    Priority(String),
    /// Not a whole number above 0 with ms or s.
    KernelTime(String),
    /// Not names of how clients are kept apart.
    Isolation(String),
}

/// In a list of [how clients are kept apart](is_fenced), that their kernels are fenced.
pub const FENCED: &str = "fenced";

/// How clients are divided among servers, by the daemon's word.
pub const DIVISIONS: [&str; 4] = ["user", "group", "client", "none"];

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percentage(text) => write!(
                f,
                "active thread percentage {text:?} is not a number in (0.0, 100.0]"
            ),
            Self::Entry(text) => write!(
                f,
                "memory limit {text:?} is not <device>=<size>, where the device is an ordinal or a UUID"
            ),
            Self::Size(text) => write!(
                f,
                "memory size {text:?} is not a whole number above 0 with K, M or G or bytes"
            ),
            Self::Priority(text) => write!(f, "client priority {text:?} is neither 0 nor 1"),
            Self::KernelTime(text) => write!(
                f,
                "limit of a kernel's time {text:?} is not a whole number above 0 with ms or s"
            ),
            Self::Isolation(text) => write!(
                f,
                "isolation {text:?}: it is {FENCED}, which is a client's to ask for, or what the daemon divides \
                 clients by ({})",
                DIVISIONS.join(", ")
            ),
        }
    }
}

impl std::error::Error for LimitError {}

/// Reads an active thread percentage: above 0 and up to 100, fractions allowed.
///
/// # Errors
/// [`LimitError::Percentage`]
pub fn percentage(text: &str) -> Result<f32, LimitError> {
    let plain = text.trim();
    let digits = plain
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    // Rust also reads "inf", "1e2" and signs, which nobody means here.
    match plain.parse::<f32>() {
        Ok(value) if digits && value > 0.0 && value <= 100.0 => Ok(value),
        _ => Err(LimitError::Percentage(text.to_owned())),
    }
}

/// A limit on the memory of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Its ordinal or UUID, as written.
    pub device: String,
    /// Bytes.
    pub bytes: u64,
}

/// Reads `device=size,…`, as `0=1G,GPU-1234…=512MB`. An empty text names no limit.
///
/// # Errors
/// [`LimitError::Entry`] and [`LimitError::Size`]
pub fn memory_limits(text: &str) -> Result<Vec<MemoryLimit>, LimitError> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    text.split(',')
        .map(|entry| {
            let wrong = || LimitError::Entry(entry.to_owned());
            let (device, size) = entry.split_once('=').ok_or_else(wrong)?;
            let device = device.trim();
            if !is_device(device) {
                return Err(wrong());
            }
            Ok(MemoryLimit {
                device: device.to_owned(),
                bytes: size_in_bytes(size)?,
            })
        })
        .collect()
}

/// Whether a text can name a device: an ordinal, or a UUID or the beginning of one.
#[must_use]
pub fn is_device(text: &str) -> bool {
    let ordinal = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let uuid = (text.starts_with("GPU-") || text.starts_with("MIG-"))
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    ordinal || uuid
}

/// Reads a size: a whole number above 0, with K, M or G and perhaps B behind it, or plain bytes.
///
/// # Errors
/// [`LimitError::Size`]
pub fn size_in_bytes(text: &str) -> Result<u64, LimitError> {
    let wrong = || LimitError::Size(text.to_owned());
    let plain = text.trim();
    let digits = plain.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = plain.split_at(digits);
    let scale = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" => 1 << 10,
        "M" | "MB" => 1 << 20,
        "G" | "GB" => 1 << 30,
        _ => return Err(wrong()),
    };
    match number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(scale))
    {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(wrong()),
    }
}

/// Reads a client priority: 0 normal, 1 below normal.
///
/// # Errors
/// [`LimitError::Priority`]
pub fn priority(text: &str) -> Result<u32, LimitError> {
    match text.trim() {
        "0" => Ok(0),
        "1" => Ok(1),
        _ => Err(LimitError::Priority(text.to_owned())),
    }
}

/// Reads how long a kernel may run: a whole number above 0 of milliseconds or seconds, as `500ms` or `30s`.
///
/// # Errors
/// [`LimitError::KernelTime`]
pub fn kernel_time(text: &str) -> Result<Duration, LimitError> {
    let wrong = || LimitError::KernelTime(text.to_owned());
    let plain = text.trim();
    let digits = plain.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = plain.split_at(digits);
    let scale = match unit {
        "ms" => 1,
        "s" => 1000,
        _ => return Err(wrong()),
    };
    let number = number.parse::<u64>().ok();
    match number.and_then(|number| number.checked_mul(scale)) {
        Some(millis) if (1..=MAX_KERNEL_MILLIS).contains(&millis) => {
            Ok(Duration::from_millis(millis))
        }
        _ => Err(wrong()),
    }
}

/// A hundred years, so that no sum of times is too large.
const MAX_KERNEL_MILLIS: u64 = 100 * 366 * 24 * 3600 * 1000;

/// How long a kernel may run, as [`kernel_time`] reads it.
#[must_use]
pub fn kernel_time_text(time: Duration) -> String {
    match time.as_millis() {
        millis if millis.is_multiple_of(1000) => format!("{}s", millis / 1000),
        millis => format!("{millis}ms"),
    }
}

/// Whether how clients are kept apart, names with commas between, says that kernels are fenced. How clients are divided among
/// servers may stand there too: the daemon and its clients may have one environment.
///
/// # Errors
/// [`LimitError::Isolation`]
pub fn is_fenced(text: &str) -> Result<bool, LimitError> {
    let mut fenced = false;
    for name in text.split(',') {
        match name.trim() {
            FENCED => fenced = true,
            name if DIVISIONS.contains(&name) => {}
            _ => return Err(LimitError::Isolation(text.to_owned())),
        }
    }
    Ok(fenced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_above_0_and_up_to_100() {
        for (text, value) in [
            ("50", 50.0),
            ("33.3", 33.3),
            ("100", 100.0),
            (" 1 ", 1.0),
            ("0.5", 0.5),
        ] {
            assert_eq!(percentage(text), Ok(value));
        }
        for wrong in [
            "", "0", "0.0", "150", "100.1", "abc", "-5", "+5", "1e1", "inf", "nan", "5%", "1.2.3",
        ] {
            assert!(percentage(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_whole_and_above_0() {
        for (text, bytes) in [
            ("3G", 3 << 30),
            ("512M", 512 << 20),
            ("5760M", 5760 << 20),
            ("512MB", 512 << 20),
            ("1024K", 1 << 20),
            ("4096", 4096),
            ("1g", 1 << 30),
        ] {
            assert_eq!(size_in_bytes(text), Ok(bytes), "{text}");
        }
        for wrong in [
            "",
            "xyz",
            "0G",
            "0",
            "-1M",
            "1.5G",
            "G",
            "1T",
            "1 G",
            "99999999999G",
        ] {
            assert!(size_in_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lists_name_devices() {
        let limit = |device: &str, bytes| MemoryLimit {
            device: device.to_owned(),
            bytes,
        };
        assert_eq!(
            memory_limits("0=1G,1=512MB"),
            Ok(vec![limit("0", 1 << 30), limit("1", 512 << 20)])
        );
        assert_eq!(
            memory_limits("GPU-42cb4199-3815=2G"),
            Ok(vec![limit("GPU-42cb4199-3815", 2 << 30)])
        );
        assert_eq!(memory_limits(""), Ok(Vec::new()));
        for wrong in [
            "junk", "=1G", "0=", "0=1G,", "0:1G", "x=1G", "-1=1G", "0=1G=2G",
        ] {
            assert!(memory_limits(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn priorities_are_0_and_1() {
        for (text, fenced) in [("fenced", true), ("user, fenced", true), ("client", false)] {
            assert_eq!(is_fenced(text), Ok(fenced));
        }
        for wrong in ["", "fence", "fenced,", "user;fenced"] {
            assert!(is_fenced(wrong).is_err(), "{wrong}");
        }
        assert_eq!(priority("0"), Ok(0));
        assert_eq!(priority("1"), Ok(1));
        assert!(priority("7").is_err());
        assert!(priority("").is_err());
    }

    #[test]
    fn times_of_kernels_are_whole_above_0_and_written_as_they_are_read() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            (" 1ms ", 1),
            ("1500ms", 1500),
        ] {
            let time = Duration::from_millis(millis);
            assert_eq!(kernel_time(text), Ok(time), "{text}");
            assert_eq!(kernel_time_text(time), text.trim());
        }
        assert_eq!(kernel_time_text(Duration::from_millis(2000)), "2s");
        for wrong in [
            "",
            "0s",
            "0ms",
            "30",
            "1.5s",
            "-1s",
            "s",
            "1 s",
            "1m",
            "none",
            "99999999999999999s",
        ] {
            assert!(kernel_time(wrong).is_err(), "{wrong}");
        }
    }
}
