//! What is submitted to the GPU: streams with their commands, how these are batched and given to the driver, and how their completion is seen.
//!
//! Called by clients; must not know them.

pub(crate) mod array;
pub(crate) mod batch;
pub(crate) mod batch_supply;
pub(crate) mod client_streams;
pub(crate) mod client_words;
pub(crate) mod command;
pub(crate) mod completion_predictor;
pub(crate) mod copy;
pub(crate) mod graph_run;
pub(crate) mod launch;
pub(crate) mod launch_batch;
pub(crate) mod poller;
pub(crate) mod readback;
pub(crate) mod semaphore;
pub(crate) mod stream;
