//! What travels between our own programs: one table for each kind of thing.
//!
//! * [`operations`]: what a client asks of its server, and [`wire`], how that lies in a ring's record;
//! * [`control_messages`]: the packets by which client, daemon and server find each other, and what daemon and
//!   server tell each other afterwards;
//! * [`device_facts`], [`image_descriptor`]: what a client is told of devices and images, so that it asks once;
//! * [`linked_image`]: our own image form, several images that are to be linked;
//! * [`arrays`], [`textures`], [`tensor_maps`]: what programs describe to CUDA, in the form in which it travels,
//!   with the checks that both ends make;
//! * [`limits`]: the grammar of limits in environments and commands.
//!
//! CUDA's own interface is `cuda-abi`'s; how bytes get from one process to another is `transport`'s. Nothing here
//! knows sockets, shared memory, or who is at the other end.
#![forbid(unsafe_code)]

pub mod arrays;
mod codec;
pub mod control_messages;
pub mod device_facts;
pub mod image_descriptor;
pub mod limits;
pub mod linked_image;
pub mod operations;
pub mod tensor_maps;
pub mod textures;
pub mod wire;

pub use codec::Damaged;
#[doc(hidden)]
pub use cuda_abi::CUresult;
