//! What an engine is: the trait made from the table, device facts, and the conformance suite.
