//! Device code: images as clients send them, what is done to them before the driver gets them, and modules made of them.
//!
//! Called by clients; knows streams only by the pointers of kernels that they launch.

pub(crate) mod budget;
pub(crate) mod client_code;
pub(crate) mod image;
pub(crate) mod images;
pub(crate) mod initial_contents;
pub(crate) mod link;
pub(crate) mod load_ahead;
pub(crate) mod loaded;
pub(crate) mod module;
pub(crate) mod module_fence;
pub(crate) mod moved_variables;
pub(crate) mod output;
pub(crate) mod own_variables;
pub(crate) mod pointers;
pub(crate) mod prepare;
pub(crate) mod refused;
pub(crate) mod rewrite;
pub(crate) mod room;
pub(crate) mod symbols;
pub(crate) mod variable_layout;
pub(crate) mod warm_files;
pub(crate) mod warm_set;
