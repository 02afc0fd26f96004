//! The kernel's static key test in one crate; the build matrix runs the same with its keys spread over two.

#![forbid(unsafe_code)]

#[path = "matrix/base.rs"]
mod base;
#[path = "matrix/checks.rs"]
mod checks;

#[test]
fn eighteen_checks_in_every_mode() {
    checks::eighteen_checks_in_every_mode();
}
