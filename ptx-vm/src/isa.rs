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

/// What is compiled for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) isa: Isa,
    /// Runs of arithmetic become machine code.
    pub(crate) jit: bool,
    /// Words from apart are loaded by the vector unit's gather also where all lanes run, not one by one.
    pub(crate) gathers: bool,
}

/// Whether the vector unit's gather is faster than single loads into a vector: 2 to 5 ns for 16 words on Intel's processors, which
/// take 5 to 6 for the loads; AMD's take twice as long as for the loads.
pub(crate) fn gathers() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes) == [*b"Genu", *b"ineI", *b"ntel"]
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
