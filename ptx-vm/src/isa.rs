//! Which vector unit the executor's loops were compiled for, picked once at run time.
//!
//! Called when a module is compiled. Must not know which operations there are.

use std::sync::OnceLock;

/// A vector unit that the lane loops are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What every x86-64 has.
    Sse2,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
}

impl Isa {
    /// How many there are.
    pub(crate) const COUNT: usize = 3;

    /// The best that this machine has; `OPENMPS_SOFT_ISA` (`sse2`, `avx2`, `avx512`) may ask for less.
    #[must_use]
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let wanted = match std::env::var("OPENMPS_SOFT_ISA").as_deref() {
                Ok("sse2") => Self::Sse2,
                Ok("avx2") => Self::Avx2,
                _ => Self::Avx512,
            };
            wanted.min(Self::detect())
        })
    }

    /// What this machine has.
    fn detect() -> Self {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        match (avx2, avx512) {
            (_, true) => Self::Avx512,
            (true, _) => Self::Avx2,
            _ => Self::Sse2,
        }
    }

    /// Whether this machine can run loops compiled for it.
    #[must_use]
    pub fn available(self) -> bool {
        self <= Self::detect()
    }
}
