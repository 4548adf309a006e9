//! Any bytes as what a kubelet sends: as many bytes come out, however they are cut, and only those of an authority
//! that is a path are others.
#![no_main]

use libfuzzer_sys::fuzz_target;
use platform::kubernetes::authority::AuthorityFixer;

/// What comes out when they arrive in pieces of so many bytes.
fn mended(bytes: &[u8], piece: usize) -> Vec<u8> {
    let mut mender = AuthorityFixer::default();
    let mut all = Vec::new();
    let mut space = [0; 61];
    let mut give = |mender: &mut AuthorityFixer| {
        loop {
            match mender.read_fixed(&mut space) {
                0 => break,
                given => all.extend_from_slice(&space[..given]),
            }
        }
    };
    for piece in bytes.chunks(piece) {
        mender.push(piece);
        give(&mut mender);
    }
    mender.end();
    give(&mut mender);
    all
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&piece, bytes)) = bytes.split_first() else {
        return;
    };
    let whole = mended(bytes, bytes.len().max(1));
    assert_eq!(whole.len(), bytes.len());
    for (before, after) in bytes.iter().zip(&whole) {
        assert!(before == after || *after == b'k' || *after == before & 0x7f);
    }
    assert_eq!(mended(bytes, usize::from(piece).max(1)), whole);
    assert_eq!(mended(&whole, 1), whole, "there is nothing left to mend");
});
