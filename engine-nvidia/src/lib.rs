//! The real driver, opened by absolute path.
