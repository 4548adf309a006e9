//! Chrome's JSON of time lines, in Kineto's dialect: which categories, names and arguments there are is what
//! PyTorch's profiler writes, so that viewers and scripts made for that read ours.
//!
//! Owns the categories' names, which `write` puts down and `summary` looks for. Must not know Perfetto's form, nor
//! who recorded.

#[cfg(feature = "files")]
pub mod read;
mod write;

pub use write::Writer;

/// Categories, as Kineto calls them.
pub mod category {
    /// A kernel on the device.
    pub const KERNEL: &str = "kernel";
    /// A copy on the device.
    pub const COPY: &str = "gpu_memcpy";
    /// A fill on the device.
    pub const FILL: &str = "gpu_memset";
    /// A call of the driver API.
    pub const DRIVER_CALL: &str = "cuda_driver";
    /// A call of the runtime API; we write none.
    pub const RUNTIME_CALL: &str = "cuda_runtime";
    /// The arrow from a call to the device's work.
    pub const FLOW: &str = "ac2g";
    /// A wait of the device's work. Ours: Kineto has no word for it.
    pub const WAIT: &str = "gpu_wait";
    /// Work that was held back, otherwise than by other programs. Ours.
    pub const HOLD: &str = "gpu_hold";
    /// What is said of the recording itself. Ours.
    pub const NOTE: &str = "openmps";
}
