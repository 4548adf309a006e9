//! The software GPU: real PTX on the CPU.
