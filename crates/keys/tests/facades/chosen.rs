//! A program that chose the engine, with three libraries: one with the engine's keys, and two with other versions of them, of
//! which one has the same layout.

use quotient_keys::{Mode, set_mode, status};

fn all_follow() {
    for on in [true, false, true, false] {
        assert!(library::follows(on) && library::from_there::<u8>().0 == [on; 4]);
        assert!(same_layout::follows(on) && same_layout::from_there::<u8>().0 == [on; 4]);
        assert!(other_layout::follows(on) && other_layout::from_there::<u8>().0 == [on; 4]);
    }
}

fn main() {
    assert!(!library::says_no_engine(), "the engine comes before main");
    assert!(same_layout::says_no_engine() && other_layout::says_no_engine());
    all_follow();
    quotient_keys::patch();
    for mode in Mode::ALL {
        set_mode(mode).expect("the mode is available");
        all_follow();
        let (sites, patched) = library::sites();
        assert!(sites >= 8, "{sites} sites in two crates");
        assert_eq!(patched > 0, mode != Mode::Soft, "{mode}");
        assert_eq!((status().sites, status().foreign), (sites, 0));
        assert_eq!((same_layout::sites(), other_layout::sites()), ((0, 0), (0, 0)));
    }
    assert_eq!(quotient_keys::keys().len(), 4);
    assert_eq!((same_layout::keys(), other_layout::keys()), (4, 4));
}
