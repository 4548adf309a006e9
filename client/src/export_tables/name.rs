//! What the private tables are called that are served. Knows nothing of their slots.

/// A table that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    non_camel_case_types,
    reason = "tables without a known name are called after their UUIDs"
)]
pub(super) enum Name {
    CudartInterface,
    Hooks,
    ToolsTls,
    ContextLocalStorage,
    IntegrityCheck,
    ContextChecks,
    ErrorLog,
    T_21318C60,
    T_1734DC26,
    T_6E163FBE,
    CompileCache,
}

impl Name {
    /// All of them, in the order of their numbers.
    pub(super) const ALL: [Self; 11] = [
        Self::CudartInterface,
        Self::Hooks,
        Self::ToolsTls,
        Self::ContextLocalStorage,
        Self::IntegrityCheck,
        Self::ContextChecks,
        Self::ErrorLog,
        Self::T_21318C60,
        Self::T_1734DC26,
        Self::T_6E163FBE,
        Self::CompileCache,
    ];
}
