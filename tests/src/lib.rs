//! What the whole-process tests share: the built binary, a daemon of one's own, and programs that
//! use CUDA's driver API as any program does.

pub mod cuda;
pub mod daemon;
pub mod fake_driver;
pub mod fault_matrix;
pub mod hostile;
pub mod program;
pub mod script;
pub mod skipped;
pub mod slow_end;
pub mod talker;
pub mod terminal;
pub mod watchdog;
