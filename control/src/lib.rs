//! The control daemon: commands, registry, spawning, logs.
