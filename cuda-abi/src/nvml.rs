//! NVIDIA's management library (NVML): what a program that opens `libnvidia-ml.so.1` can call.
//!
//! [`for_each_nvml_function!`](crate::for_each_nvml_function) is the one table. Exported symbols, their
//! answers and `docs/nvml-functions.md` come from it. This module knows nothing of how a function is
//! answered, nor of the structures that the functions fill.

mod rows;

/// Where a function is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Not built: exported, answers NVML_ERROR_NOT_SUPPORTED.
    Absent,
    /// In the library, from nothing but the arguments.
    Local,
    /// Passed on to the driver's own library, where the process can open it.
    Sensor,
    /// From what the daemon says that the caller has.
    View,
}

impl Class {
    /// The word that stands in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Local => "local",
            Self::Sensor => "sensor",
            Self::View => "view",
        }
    }
}

/// Why a function is not built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// It changes a device that is not the caller's alone.
    Changes,
    /// It waits for events of a device, which need a handle of the driver's own.
    Events,
    /// It samples performance counters, which need handles of the driver's own.
    Gpm,
    /// It tells of devices that are not offered.
    Hidden,
    /// It is no documented function.
    Internal,
    /// It concerns slices of a GPU (MIG), which are not offered.
    Mig,
    /// It tells of other users' processes.
    Others,
    /// It concerns chassis of S-class systems.
    Units,
    /// It concerns virtual machines' shares of a GPU (vGPU).
    Vgpu,
    /// It concerns Windows.
    Windows,
}

impl Why {
    /// The reason in words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Changes => "changes a shared device, which is its operator's to do",
            Self::Events => "event sets",
            Self::Gpm => "performance counters",
            Self::Hidden => "tells of devices that are not offered",
            Self::Internal => "not documented",
            Self::Mig => "slices of a GPU (MIG), of which none are offered",
            Self::Others => "tells of other users' processes",
            Self::Units => "S-class chassis",
            Self::Vgpu => "virtual machines (vGPU)",
            Self::Windows => "Windows",
        }
    }
}

/// What the table says of a function.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The exported name.
    pub name: &'static str,
    /// Where it is answered.
    pub class: Class,
    /// Why it is not built, if it is not.
    pub why: Option<Why>,
}

macro_rules! class {
    (absent) => {
        Class::Absent
    };
    (local) => {
        Class::Local
    };
    (sensor) => {
        Class::Sensor
    };
    (view) => {
        Class::View
    };
}

macro_rules! why {
    () => {
        None
    };
    ($why:ident) => {
        Some(Why::$why)
    };
}

macro_rules! table {
    ($(
        $class:ident $(($why:ident))? $name:ident $(($($argument:ident: $type:ty),*))?;
    )*) => {
        /// Every function, in the order of the table.
        pub const ROWS: &[Row] = &[$(Row {
            name: stringify!($name),
            class: class!($class),
            why: why!($($why)?),
        },)*];
    };
}

crate::for_each_nvml_function!(table);

/// What a function returns (nvmlReturn_t).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
#[allow(non_camel_case_types, reason = "the name is C's")]
#[must_use]
pub struct nvmlReturn_t(pub u32);

macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        #[allow(missing_docs, reason = "the names and texts say it")]
        impl nvmlReturn_t {
            $(pub const $name: Self = Self($number);)*

            /// What it means, in words, with the NUL that C wants.
            #[must_use]
            pub const fn text(self) -> &'static core::ffi::CStr {
                match self.0 {
                    $($number => $text,)*
                    _ => c"Unknown Error",
                }
            }
        }
    };
}

codes! {
    SUCCESS = 0, c"Success";
    ERROR_UNINITIALIZED = 1, c"Uninitialized";
    ERROR_INVALID_ARGUMENT = 2, c"Invalid Argument";
    ERROR_NOT_SUPPORTED = 3, c"Not Supported";
    ERROR_NO_PERMISSION = 4, c"Insufficient Permissions";
    ERROR_ALREADY_INITIALIZED = 5, c"Already Initialized";
    ERROR_NOT_FOUND = 6, c"Not Found";
    ERROR_INSUFFICIENT_SIZE = 7, c"Insufficient Size";
    ERROR_INSUFFICIENT_POWER = 8, c"Insufficient External Power";
    ERROR_DRIVER_NOT_LOADED = 9, c"Driver Not Loaded";
    ERROR_TIMEOUT = 10, c"Timeout";
    ERROR_IRQ_ISSUE = 11, c"Interrupt Request Issue";
    ERROR_LIBRARY_NOT_FOUND = 12, c"NVML Shared Library Not Found";
    ERROR_FUNCTION_NOT_FOUND = 13, c"Function Not Found";
    ERROR_CORRUPTED_INFOROM = 14, c"Corrupted infoROM";
    ERROR_GPU_IS_LOST = 15, c"GPU is lost";
    ERROR_RESET_REQUIRED = 16, c"GPU requires restart";
    ERROR_OPERATING_SYSTEM = 17, c"Blocked by the operating system";
    ERROR_LIB_RM_VERSION_MISMATCH = 18, c"Driver/library version mismatch";
    ERROR_IN_USE = 19, c"In use by another client";
    ERROR_MEMORY = 20, c"Insufficient Memory";
    ERROR_NO_DATA = 21, c"No data";
    ERROR_VGPU_ECC_NOT_SUPPORTED = 22, c"vGPU operation not available with ECC";
    ERROR_INSUFFICIENT_RESOURCES = 23, c"Insufficient Resources";
    ERROR_FREQ_NOT_SUPPORTED = 24, c"Frequency not supported";
    ERROR_ARGUMENT_VERSION_MISMATCH = 25, c"Argument version mismatch";
    ERROR_DEPRECATED = 26, c"Deprecated";
    ERROR_NOT_READY = 27, c"Not Ready";
    ERROR_GPU_NOT_FOUND = 28, c"GPU not found";
    ERROR_INVALID_STATE = 29, c"Invalid State";
    ERROR_RESET_TYPE_NOT_SUPPORTED = 30, c"Reset type not supported";
    ERROR_UNKNOWN = 999, c"Unknown Error";
}

impl nvmlReturn_t {
    /// The value of a call that came to this.
    pub const fn of(result: Result<(), Self>) -> Self {
        match result {
            Ok(()) => Self::SUCCESS,
            Err(code) => code,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn it_has_every_name_that_drivers_export_once() {
        let exported: BTreeSet<&str> = include_str!("../tests/data/nvml.tsv").lines().collect();
        let rows: BTreeSet<&str> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(rows, exported);
        assert_eq!(rows.len(), ROWS.len());
    }

    #[test]
    fn what_is_not_built_says_why_and_nothing_else_does() {
        for row in ROWS {
            assert_eq!(
                row.why.is_some(),
                row.class == Class::Absent,
                "{}",
                row.name
            );
        }
    }

    #[test]
    fn codes_have_texts() {
        assert_eq!(nvmlReturn_t(3).text(), c"Not Supported");
        assert_eq!(nvmlReturn_t(31).text(), nvmlReturn_t::ERROR_UNKNOWN.text());
    }
}
