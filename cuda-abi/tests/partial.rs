//! Rows that say what is left out of them.

#[test]
fn what_is_not_built_at_all_is_not_partial() {
    for row in cuda_abi::functions::ROWS {
        assert!(row.is_built() || row.partial.is_none(), "{}", row.name);
    }
}
