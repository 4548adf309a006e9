//! What a check found: whether it is as it should be, and what to do about it if not.
//!
//! Made by the checks, printed by `doctor`. Must not know what was checked.

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CheckOutcome {
    /// As it should be, or a fact.
    Ok,
    /// Works, but perhaps not as meant.
    Warning,
    /// Programs will fail.
    Problem,
}

/// One finding.
#[derive(Debug, serde::Serialize)]
pub(super) struct Finding {
    /// What was looked at.
    pub(super) subject: &'static str,
    pub(super) state: CheckOutcome,
    /// What was found.
    pub(super) text: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mend: Option<String>,
}

impl Finding {
    pub(super) fn new(subject: &'static str, state: CheckOutcome, text: impl Into<String>) -> Self {
        Self {
            subject,
            state,
            text: text.into(),
            mend: None,
        }
    }

    pub(super) fn ok(subject: &'static str, text: impl Into<String>) -> Self {
        Self::new(subject, CheckOutcome::Ok, text)
    }

    pub(super) fn warning(
        subject: &'static str,
        text: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self {
            mend: Some(mend.into()),
            ..Self::new(subject, CheckOutcome::Warning, text)
        }
    }

    pub(super) fn problem(
        subject: &'static str,
        text: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self {
            mend: Some(mend.into()),
            ..Self::new(subject, CheckOutcome::Problem, text)
        }
    }
}
