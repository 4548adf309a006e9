//! How the list of `openmps top` is sorted and grouped.
//!
//! Chosen on the command line and by keys; `app` asks for it. Must not know what is selected.

use crate::usage::ClientUsage;

/// What clients are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// The part of the time in which their kernels ran
    Kernels,
    /// The part of the multiprocessors' time
    Multiprocessors,
    /// Memory
    Memory,
    /// The part of the time in which they waited
    Waited,
    /// Launches a second
    Launches,
    /// Bytes copied a second
    Copies,
    /// Process id
    Pid,
    /// Program
    Program,
}

impl Sort {
    const ALL: [Self; 8] = [
        Self::Kernels,
        Self::Multiprocessors,
        Self::Memory,
        Self::Waited,
        Self::Launches,
        Self::Copies,
        Self::Pid,
        Self::Program,
    ];

    pub(super) fn next(self) -> Self {
        let at = Self::ALL.iter().position(|&sort| sort == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// Sorts what is greater before what is less, but names and numbers upwards.
    pub(super) fn order(self, one: &ClientUsage, other: &ClientUsage) -> std::cmp::Ordering {
        let (a, b) = (&one.rates, &other.rates);
        let of_rates = |value: fn(&crate::usage::Rates) -> f64| value(b).total_cmp(&value(a));
        let order = match self {
            Self::Kernels => of_rates(|rates| rates.kernels),
            Self::Multiprocessors => of_rates(|rates| rates.multiprocessors),
            Self::Memory => other.memory.cmp(&one.memory),
            Self::Waited => of_rates(|rates| rates.waited),
            Self::Launches => of_rates(|rates| rates.launches),
            Self::Copies => of_rates(|rates| rates.to_device + rates.from_device),
            Self::Pid => one.pid.cmp(&other.pid),
            Self::Program => one.title().cmp(&other.title()),
        };
        order.then(one.session.cmp(&other.session))
    }
}

/// Which clients stand together, below their sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// None.
    No,
    /// Those of a group.
    Groups,
    /// Those of a pod, or of a container that is in none.
    Pods,
}

impl Grouping {
    pub(super) const fn next(self) -> Self {
        match self {
            Self::No => Self::Groups,
            Self::Groups => Self::Pods,
            Self::Pods => Self::No,
        }
    }
}
