//! Hazards: a poll that is stopped inside jemalloc's arenas and thread caches stops everybody else, or memory is lost or torn.

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[path = "../../../crates/runtime/tests/preempt_hostile.rs"]
mod preempt_hostile;
