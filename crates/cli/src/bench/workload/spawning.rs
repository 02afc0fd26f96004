//! Tasks that do nothing: what a task costs from spawn to join. A task's output is the proof that it ran, so the tasks
//! share no counter that would be measured with them.

use std::time::Instant;

use super::super::spawner::Spawner;
use super::{Measured, Premise, joined};

pub async fn join<S: Spawner>(spawner: &S, operations: u64) -> Result<Measured, Premise> {
    let mut handles = Vec::with_capacity(operations as usize);
    let start = Instant::now();
    for _ in 0..operations {
        handles.push(spawner.spawn(async { 1 }));
    }
    let mut ran = 0;
    for handle in handles {
        ran += joined(handle.await)?;
    }
    Ok(Measured {
        elapsed: start.elapsed(),
        operations,
        polls: ran,
        polls_min: operations,
    })
}

pub async fn one_by_one<S: Spawner>(spawner: &S, operations: u64) -> Result<Measured, Premise> {
    let mut ran = 0;
    let start = Instant::now();
    for _ in 0..operations {
        ran += joined(spawner.spawn(async { 1 }).await)?;
    }
    Ok(Measured {
        elapsed: start.elapsed(),
        operations,
        polls: ran,
        polls_min: operations,
    })
}
