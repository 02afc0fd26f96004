//! Looks for steps back: readers on threads and in tasks that tell each other what they have read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quotient::{Group, ThreadMeter};
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::failure::Failure;

/// Readers on metered threads.
const THREADS: u64 = 4;
/// Readers in tasks of the group.
const TASKS: u64 = 2;
/// A reader listens before one of so many readings, and tells after another: often enough to catch everybody in the act,
/// seldom enough that the shared word does not set the pace.
const TALK_EVERY: u64 = 16;
/// Readings of a task between two yields.
const BURST: u64 = 1024;

/// What was found.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// Readings made.
    pub reads: u64,
    /// By so many readers.
    pub readers: u64,
    /// Readings less than one that the reader had made or heard of.
    pub steps_back: u64,
}

/// What the readers tell each other.
#[derive(Debug, Default)]
struct Talk {
    /// The most that anybody has told to have read. Unit: nanoseconds.
    most: AtomicU64,
    steps_back: AtomicU64,
    reads: AtomicU64,
}

/// One reader's own memory.
struct Reader {
    group: Group,
    talk: Arc<Talk>,
    last: u64,
    reads: u64,
    steps_back: u64,
}

impl Reader {
    fn new(group: &Group, talk: &Arc<Talk>) -> Self {
        Self {
            group: group.clone(),
            talk: talk.clone(),
            last: 0,
            reads: 0,
            steps_back: 0,
        }
    }

    fn read(&mut self, times: u64) {
        for _ in 0..times {
            let talks = self.reads.is_multiple_of(TALK_EVERY);
            if talks {
                self.last = self.last.max(self.talk.most.load(Ordering::Acquire));
            }
            let now = u64::try_from(self.group.cpu_time().as_nanos()).unwrap_or(u64::MAX);
            self.steps_back += u64::from(now < self.last);
            self.last = self.last.max(now);
            if talks {
                self.talk.most.fetch_max(now, Ordering::AcqRel);
            }
            self.reads += 1;
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.talk.reads.fetch_add(self.reads, Ordering::Relaxed);
        self.talk
            .steps_back
            .fetch_add(self.steps_back, Ordering::Relaxed);
    }
}

/// Makes `reads` readings or a few more.
///
/// # Errors
/// When a reader fails.
pub fn run(runtime: &Runtime, group: &Group, reads: u64) -> Result<Checked, Failure> {
    let talk = Arc::new(Talk::default());
    let share = reads.div_ceil(THREADS + TASKS);
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let mut reader = Reader::new(group, &talk);
            group.spawn(async move {
                for _ in 0..share.div_ceil(BURST) {
                    reader.read(BURST);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let mut reader = Reader::new(group, &talk);
                scope.spawn(move || {
                    let meter = ThreadMeter::enter(&reader.group.clone());
                    reader.read(share);
                    meter.map(drop)
                })
            })
            .collect();
        for thread in threads {
            thread
                .join()
                .map_err(|_| Failure::Run("a reader panicked".into()))?
                .map_err(Failure::during("cannot meter a thread"))?;
        }
        Ok::<_, Failure>(())
    })?;
    runtime.block_on(async {
        for task in tasks {
            task.await.map_err(Failure::during("a reader failed"))?;
        }
        Ok::<_, Failure>(())
    })?;
    Ok(Checked {
        reads: talk.reads.load(Ordering::Relaxed),
        readers: THREADS + TASKS,
        steps_back: talk.steps_back.load(Ordering::Relaxed),
    })
}
