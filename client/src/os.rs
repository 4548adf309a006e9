//! What the library asks of Linux for its own sake: signal masks, the process's mappings, page faults
//! taken ahead, memory that may not be there. Knows nothing of CUDA and imports nothing of the client.

pub(crate) mod prefault;
pub(crate) mod process_maps;
pub(crate) mod program_memory;
pub(crate) mod signal_mask;
