//! The binary `quotient`.
fn main() {}
