//! Nothing but tests: long polls that allocate, beside all other hostile kinds, with the allocators that servers choose instead of the
//! system's (`tests/jemalloc.rs`, `tests/mimalloc.rs`). A program has one allocator, so each has a test program of its own.
//!
//! `cargo test --manifest-path integrations/allocators/Cargo.toml`; longer with `QUOTIENT_HOSTILE_SECONDS`, as `preempt_hostile` of `quotient`.
#![forbid(unsafe_code)]
