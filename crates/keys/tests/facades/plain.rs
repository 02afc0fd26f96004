//! A program that does not know of keys, with a library that uses them.

fn main() {
    assert!(library::says_no_engine());
    for on in [true, false, true, false] {
        assert!(library::follows(on) && library::from_there::<u8>().0 == [on; 4]);
    }
    assert_eq!((library::sites(), library::keys()), ((0, 0), 4));
}
