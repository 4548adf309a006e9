//! What an operator asks for.
//!
//! Read from the command line and the environment; asked by `underlay`. Must not know whether it can be had.

use super::error::UnderlayError;
use crate::files::directories::text_variable;

/// What runs beneath servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    #[default]
    None,
    /// NVIDIA's MPS where it can be had.
    Auto,
    /// NVIDIA's MPS, and no server without it.
    NvidiaMps,
}

impl Mode {
    /// The names, for messages.
    pub const NAMES: &'static str = "auto, nvidia-mps and none";

    /// The mode with a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let mut all = [Self::None, Self::Auto, Self::NvidiaMps].into_iter();
        all.find(|mode| mode.name() == name)
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Auto => "auto",
            Self::NvidiaMps => "nvidia-mps",
        }
    }

    /// What an option or else the environment asks for.
    ///
    /// # Errors
    /// Which modes there are.
    pub fn asked(option: Option<Self>) -> Result<Self, UnderlayError> {
        match (option, text_variable("OPENMPS_UNDERLAY")?) {
            (Some(mode), _) => Ok(mode),
            (None, Some(text)) => Self::named(&text).ok_or(UnderlayError::Mode {
                text,
                names: Self::NAMES,
            }),
            (None, None) => Ok(Self::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names() {
        for mode in [Mode::None, Mode::Auto, Mode::NvidiaMps] {
            assert_eq!(Mode::named(mode.name()), Some(mode));
            assert!(Mode::NAMES.contains(mode.name()));
        }
        assert_eq!(Mode::named("mps"), None);
        assert_eq!(Mode::default(), Mode::None);
    }
}
