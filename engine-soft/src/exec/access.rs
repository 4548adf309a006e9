//! Raw access to clients' memory: the one place of the executor that dereferences an address which a
//! kernel made.
