//! The queue of the `int3` mode: a bounded vector of sites, sorted by address, that are rewritten together.

/// Sites that one batch holds. The kernel's queue is one page of 16-byte records.
pub(in crate::text) const BATCH_SITES_MAX: usize = 256;

/// Why a site was not queued; applying the queue first may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) enum Refusal {
    /// The queue holds as many sites as it may.
    Full,
    /// The site lies before the last one queued.
    OutOfOrder,
}

/// The queue; holds indices into the table, which is sorted by address, so an index stands for the address.
#[derive(Debug)]
pub(in crate::text) struct BatchQueue {
    queued: Vec<u32>,
    capacity: usize,
}

impl BatchQueue {
    /// A queue for [`BATCH_SITES_MAX`] sites, or for none at all if there is no memory: then every site is patched
    /// singly.
    pub(in crate::text) fn new() -> Self {
        let mut queued = Vec::new();
        match queued.try_reserve_exact(BATCH_SITES_MAX) {
            Ok(()) => Self {
                queued,
                capacity: BATCH_SITES_MAX,
            },
            Err(_) => Self::with_capacity(0),
        }
    }

    pub(in crate::text) fn with_capacity(capacity: usize) -> Self {
        Self {
            queued: Vec::with_capacity(capacity),
            capacity,
        }
    }

    pub(in crate::text) fn queue(&mut self, site: u32) -> Result<(), Refusal> {
        if self.queued.len() >= self.capacity {
            return Err(Refusal::Full);
        }
        if self.queued.last().is_some_and(|&last| site <= last) {
            return Err(Refusal::OutOfOrder);
        }
        self.queued.push(site);
        Ok(())
    }

    /// What is to be applied, ascending.
    pub(in crate::text) fn queued(&self) -> &[u32] {
        &self.queued
    }

    /// To be called when it has been applied. Keeps the memory.
    pub(in crate::text) fn clear(&mut self) {
        self.queued.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_when_full_or_out_of_order() {
        let mut queue = BatchQueue::new();
        for site in 0..BATCH_SITES_MAX as u32 {
            assert_eq!(queue.queue(site * 2), Ok(()));
        }
        assert_eq!(queue.queue(9999), Err(Refusal::Full));
        assert_eq!(queue.queued().len(), BATCH_SITES_MAX);
        queue.clear();
        assert_eq!(queue.queue(7), Ok(()));
        assert_eq!(queue.queue(7), Err(Refusal::OutOfOrder));
        assert_eq!(queue.queue(3), Err(Refusal::OutOfOrder));
        assert_eq!(queue.queued(), [7]);
    }

    #[test]
    fn without_memory_it_refuses_everything() {
        assert_eq!(BatchQueue::with_capacity(0).queue(1), Err(Refusal::Full));
    }
}
