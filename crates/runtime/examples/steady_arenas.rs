//! The example `arenas` with an allocator inside which nobody is stopped.
#![forbid(unsafe_code)]

#[path = "arenas.rs"]
mod arenas;

#[global_allocator]
static ALLOCATOR: quotient::SteadyAllocator = quotient::SteadyAllocator::SYSTEM;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    arenas::main()
}
