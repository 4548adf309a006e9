//! The one table: every CUDA driver function, the operations that travel, C types and error codes.
