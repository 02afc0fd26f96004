//! What safe code can hand to the macros: here every name that they could take is taken (what a program calls `core` or `concat!`
//! must not get into their unsafe blocks), and an index is not the same number to the compiler and to the processor.

#![forbid(unsafe_code)]

extern crate self as core;

use quotient_key::{
    static_branch, static_branch_likely, static_branch_unlikely, static_call_if, static_key,
};

#[allow(unused_macros)]
macro_rules! concat {
    ($($any:tt)*) => {
        compile_error!("a macro of the program in the macros of the keys")
    };
}
#[allow(unused_macros)]
macro_rules! stringify {
    ($($any:tt)*) => {
        compile_error!("a macro of the program in the macros of the keys")
    };
}
#[allow(unused_macros)]
macro_rules! module_path {
    ($($any:tt)*) => {
        compile_error!("a macro of the program in the macros of the keys")
    };
}

static_key! {
    /// Named by its path.
    static KEY = false;
    /// Two keys.
    static KEYS = [false; 2];
    /// Named as its registration was.
    #[allow(non_upper_case_globals)]
    static register = false;
    /// And this.
    static BEFORE_MAIN = false;
    /// Two others.
    static CHOSEN = [false; 2];
}

/// The sign of a NaN that a division makes is the processor's, or the compiler's.
const fn sign_of_nan(zero: f64) -> usize {
    let divisor = zero;
    (zero / divisor).is_sign_negative() as usize
}

fn nothing(_: &u64) {}

#[test]
fn names_of_the_program_do_not_get_into_the_macros() {
    let value = &1_u64;
    for on in [false, true] {
        KEY.set(on).expect("nothing hinders");
        KEYS[1].set(on).expect("nothing hinders");
        static_call_if!(KEY, nothing(value: &u64));
        assert!(static_branch_unlikely!(KEY) == on && static_branch!(KEYS[1]) == on);
    }
    assert!(!static_branch_unlikely!(register) && !static_branch_unlikely!(BEFORE_MAIN));
    assert_eq!(KEY.name(), "hostile_callers::KEY");
}

#[test]
fn an_index_is_the_compilers_number_in_every_part_of_a_branch() {
    const INDEX: usize = sign_of_nan(0.0);
    for on in [true, false] {
        CHOSEN[INDEX].set(on).expect("nothing hinders");
        assert_eq!(static_branch_unlikely!(CHOSEN[sign_of_nan(0.0)]), on);
        assert_eq!(static_branch_likely!(CHOSEN[sign_of_nan(0.0)]), on);
    }
}
