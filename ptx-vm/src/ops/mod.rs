//! The operations that compiled code is made of. A function here runs one of them for the lanes of a
//! [`super::machine::Machine`]; which one an instruction becomes, `lower` says.
//!
//! Run by `machine`. Must not know PTX's syntax, nor how the paths of a lane group are chosen.

pub(crate) mod atomic;
pub(crate) mod bulk;
pub(crate) mod byte_matrix;
pub(crate) mod cold;
pub(crate) mod compare;
pub(crate) mod control;
pub(crate) mod convert;
mod dense;
pub(crate) mod device_runtime;
pub(crate) mod float;
pub(crate) mod fp8;
pub(crate) mod half;
pub(crate) mod integer;
pub(crate) mod logic;
pub(crate) mod matrix;
pub(crate) mod mbarrier;
pub(crate) mod memory;
pub(crate) mod parts;
pub(crate) mod pure;
pub(crate) mod rows;
pub(crate) mod scaled;
pub(crate) mod search;
pub(crate) mod simple;
pub(crate) mod sparse;
pub(crate) mod special;
pub(crate) mod system;
pub(crate) mod table;
pub(crate) mod tensor;
pub(crate) mod texture;
pub(crate) mod video;
pub(crate) mod warp;
pub(crate) mod warpgroup;
