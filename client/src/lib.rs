//! libcuda.so.1: the client runtime.
