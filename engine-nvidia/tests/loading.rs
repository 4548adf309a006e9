//! Which driver libraries are taken, and what is said of those that are not.

mod common;

use std::path::Path;

use common::{Fake, open};
use engine::Engine;
use engine_nvidia::OpenError;

fn refused(fake: &Fake) -> String {
    fake.open().expect_err("it is refused").to_string()
}

#[test]
fn old_drivers_are_refused_by_their_version() {
    for version in [12030, 11080, 0] {
        let text = refused(&Fake::new(&[&format!("VERSION={version}")]));
        let own = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
        assert!(text.contains(&own) && text.contains("12.4"), "{text}");
    }
    for version in [12040, 13000, 99990] {
        let engine = Fake::new(&[&format!("VERSION={version}")]).open().unwrap();
        assert_eq!(engine.driver_version(), version);
    }
}

#[test]
fn our_own_library_is_refused_unopened() {
    let fake = Fake::new(&["VERSION=13000", "MARK=\"OpenMPS client runtime 0.1\""]);
    assert_eq!(fake.open().unwrap_err(), OpenError::Ours(fake.path()));
    // Even what could not be opened at all.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "..OpenMPS client runtime..").unwrap();
    assert_eq!(
        open(file.path()).unwrap_err(),
        OpenError::Ours(file.path().into())
    );
}

#[test]
fn what_is_no_driver_is_refused() {
    let text = refused(&Fake::new(&["NOT_A_DRIVER"]));
    assert!(text.contains("has not the functions of a driver"), "{text}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "no library").unwrap();
    assert!(matches!(open(file.path()), Err(OpenError::Load { .. })));
}

#[test]
fn only_absolute_paths_are_opened() {
    let relative = open(Path::new("libcuda.so.1")).unwrap_err();
    assert_eq!(relative, OpenError::NotAbsolute("libcuda.so.1".into()));
    let absent = open(Path::new("/nonexistent/libcuda.so.1")).unwrap_err();
    assert!(matches!(absent, OpenError::NoDriver { .. }), "{absent}");
}

#[test]
fn facts_are_the_drivers_but_for_what_remoting_cannot_keep() {
    let engine = Fake::new(&["VERSION=12040"]).open().unwrap();
    let [facts] = engine.devices() else {
        panic!("one device");
    };
    assert_eq!((&facts.name[..], facts.total_memory), ("Fake GPU", 1 << 32));
    assert_eq!(facts.uuid[..4], [0, 1, 2, 3]);
    assert_eq!(facts.attribute(16), Some(1016));
    // Pageable access; the last attribute that this driver knows, the handles by which pools are shared,
    // which are ours; and one that it does not know.
    assert_eq!(
        (
            facts.attribute(88),
            facts.attribute(119),
            facts.attribute(120)
        ),
        (Some(0), Some(1), None)
    );
}

#[test]
fn managed_memory_is_that_of_a_device_without_concurrent_access() {
    // The fake driver says something else than 0 to each.
    let engine = Fake::new(&["VERSION=12040"]).open().unwrap();
    let facts = &engine.devices()[0];
    assert_eq!(facts.attribute(83), Some(1), "there is managed memory");
    for (attribute, what) in [
        (86, "atomics of the host and of the GPU on one word"),
        (88, "memory of malloc"),
        (89, "managed memory at the same time"),
        (100, "page tables of the host"),
        (101, "managed memory where the GPU has it"),
    ] {
        assert_eq!(facts.attribute(attribute), Some(0), "{what}");
    }
}

#[test]
fn an_image_that_several_have_counts_once() {
    let fake = Fake::new(&["VERSION=12040"]);
    let engine = fake.open().unwrap();
    engine::conformance::images::an_image_that_several_have_counts_once(&engine);
}
