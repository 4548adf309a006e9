//! What `cuGetProcAddress` answers, from the table alone.
//!
//! A name is asked without a version suffix, together with the CUDA version that the asker was built
//! for. The forms of a name in order of the version that introduced them are exported as `name`,
//! `name_v2`, `name_v3` and so on; the answer is the newest form that is not newer than the version
//! asked for. Where forms of a name have per-thread twins, a per-thread asker chooses among the
//! twins alone; else it gets what everybody gets. This module knows nothing of addresses: the caller
//! maps an [`Entry`] to its own function.

use std::sync::LazyLock;

use crate::functions::{Function, ROWS, Row};
use crate::types::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

/// The CUDA version of the table, as cuDriverGetVersion reports it. Nothing newer may be asked: a
/// newer form of a function may take other parameters.
pub const DRIVER_VERSION: i32 = 13000;

/// The greatest value that the flags of `cuGetProcAddress` may have.
const FLAGS_MAX: u64 = 3;

/// An entry point of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The function.
    pub function: Function,
    /// Whether its per-thread twin is meant.
    pub per_thread: bool,
}

impl Entry {
    /// The name under which the entry point is exported.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        let row = self.function.row();
        match (self.per_thread, row.twin) {
            (true, Some(twin)) => twin.symbol,
            _ => row.name,
        }
    }
}

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The entry point.
    Found(Entry),
    /// Unknown flags: CUDA_ERROR_INVALID_VALUE, outputs untouched.
    InvalidFlags,
    /// No function has this name.
    Unknown,
    /// The version is above [`DRIVER_VERSION`]: CUDA_ERROR_INVALID_VALUE, outputs untouched.
    VersionTooHigh,
    /// The name exists, but not yet in this version.
    VersionTooLow,
}

/// A form of a name: what answers from a version on.
struct Form {
    base: &'static str,
    per_thread: bool,
    since: i32,
    function: Function,
}

/// Every reachable form, sorted by name, kind and version.
static FORMS: LazyLock<Vec<Form>> = LazyLock::new(|| {
    let mut forms = Vec::new();
    for row in ROWS.iter().filter(|row| row.since != 0) {
        let form = |per_thread, since: u32| Form {
            base: base_name(row),
            per_thread,
            since: since.cast_signed(),
            function: row.function,
        };
        forms.push(form(false, row.since));
        forms.extend(row.twin.map(|twin| form(true, twin.since)));
    }
    forms.sort_unstable_by_key(|form| (form.base, form.per_thread, form.since));
    forms
});

/// The name under which a row's function is asked: without its `_v2`, `_v3`, …
#[must_use]
pub fn base_name(row: &Row) -> &'static str {
    match row.name.rsplit_once("_v") {
        Some((base, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => row.name,
    }
}

/// Answers a question of `cuGetProcAddress`: `name` without its zero, the CUDA `version` it is asked
/// for, and the `flags` as the program gave them.
#[must_use]
pub fn lookup(name: &[u8], version: i32, flags: u64) -> Answer {
    if flags > FLAGS_MAX {
        return Answer::InvalidFlags;
    }
    if version > DRIVER_VERSION {
        return Answer::VersionTooHigh;
    }
    let start = FORMS.partition_point(|form| form.base.as_bytes() < name);
    let forms = &FORMS[start..];
    let forms = &forms[..forms.partition_point(|form| form.base.as_bytes() == name)];
    if forms.is_empty() {
        return Answer::Unknown;
    }
    let (legacy, twins) = forms.split_at(forms.partition_point(|form| !form.per_thread));
    let per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM != 0;
    let candidates = if per_thread && !twins.is_empty() {
        twins
    } else {
        legacy
    };
    match candidates[..candidates.partition_point(|form| form.since <= version)].last() {
        Some(form) => Answer::Found(Entry {
            function: form.function,
            per_thread: form.per_thread,
        }),
        None => Answer::VersionTooLow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &str, version: i32, flags: u64) -> Option<&'static str> {
        match lookup(name.as_bytes(), version, flags) {
            Answer::Found(entry) => Some(entry.symbol()),
            _ => None,
        }
    }

    #[test]
    fn the_newest_form_that_is_old_enough() {
        assert_eq!(lookup(b"cuCtxCreate", 1999, 0), Answer::VersionTooLow);
        assert_eq!(symbol("cuCtxCreate", 2000, 0), Some("cuCtxCreate"));
        assert_eq!(symbol("cuCtxCreate", 3020, 0), Some("cuCtxCreate_v2"));
        assert_eq!(symbol("cuCtxCreate", 12040, 1), Some("cuCtxCreate_v3"));
        assert_eq!(symbol("cuCtxCreate", 13000, 0), Some("cuCtxCreate_v4"));
        assert_eq!(
            symbol("cuGetProcAddress", 11030, 0),
            Some("cuGetProcAddress")
        );
        assert_eq!(
            symbol("cuGetProcAddress", 12000, 0),
            Some("cuGetProcAddress_v2")
        );
    }

    #[test]
    fn per_thread_askers_choose_among_twins() {
        assert_eq!(
            symbol("cuMemcpyHtoD", 7000, 2),
            Some("cuMemcpyHtoD_v2_ptds")
        );
        assert_eq!(
            symbol("cuMemcpyHtoD", 7000, 3),
            Some("cuMemcpyHtoD_v2_ptds")
        );
        assert_eq!(symbol("cuMemcpyHtoD", 7000, 1), Some("cuMemcpyHtoD_v2"));
        assert_eq!(lookup(b"cuMemcpyHtoD", 6050, 2), Answer::VersionTooLow);
        assert_eq!(symbol("cuCtxGetId", 12000, 2), Some("cuCtxGetId"));
    }

    #[test]
    fn misses_and_refusals() {
        assert_eq!(lookup(b"", 0, 0), Answer::Unknown);
        assert_eq!(lookup(b"cuMemAlloc_v2", 13000, 0), Answer::Unknown);
        assert_eq!(lookup(b"cuMemAllo", 13000, 0), Answer::Unknown);
        assert_eq!(lookup(b"zz\xff", 13000, 0), Answer::Unknown);
        assert_eq!(lookup(b"cuMemGetAttribute", 13000, 0), Answer::Unknown);
        assert_eq!(lookup(b"cuEGLApiInit", 13000, 0), Answer::Unknown);
        assert_eq!(lookup(b"cuInit", 0, 0), Answer::VersionTooLow);
        assert_eq!(lookup(b"cuInit", -1, 0), Answer::VersionTooLow);
        assert_eq!(lookup(b"cuInit", 13010, 0), Answer::VersionTooHigh);
        assert_eq!(lookup(b"cuInit", 13000, 4), Answer::InvalidFlags);
        assert_eq!(lookup(b"cuInit", 13000, u64::MAX), Answer::InvalidFlags);
    }
}
