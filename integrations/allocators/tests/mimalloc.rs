//! Hazards: a poll that is stopped inside mimalloc's heaps stops everybody else, or memory is lost or torn.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[path = "../../../crates/runtime/tests/preempt_hostile.rs"]
mod preempt_hostile;
