//! A table with a place for each virtual CPU, of which only those that are used take memory.
//!
//! Places are in pages, each made when the first of its places is; the pages' list is the only thing that grows with the number of slots:
//! 64 bytes with two virtual CPUs, 128 with 32, 1 KiB with 1,024. What lies beyond those slots, a stand-in that few groups ever meet, is in
//! a table of its own, made with the first of its places. Reading and making need no lock but that of a place that is being made.

use std::sync::OnceLock;

/// Fewest and most places of a page, as powers of two: pages of the square root of the slots cost least together.
const PAGE_BITS: (u32, u32) = (2, 5);
/// Slots of the table of those beyond. Unit: virtual CPUs. Default 256, as many as there are stand-ins on a small machine.
const FAR_SLOTS: usize = 256;

type Page<T> = Box<[OnceLock<T>]>;

/// One `T` for each virtual CPU that has asked for it.
#[derive(Debug)]
pub(crate) struct PerVcpu<T> {
    pages: Box<[OnceLock<Page<T>>]>,
    /// log2 of the places of a page.
    bits: u32,
    /// Of virtual CPUs beyond these.
    far: OnceLock<Box<PerVcpu<T>>>,
}

impl<T: Default> PerVcpu<T> {
    /// For virtual CPUs below `slots`, mostly.
    pub(crate) fn new(slots: usize) -> Self {
        let bits = slots
            .max(1)
            .ilog2()
            .div_ceil(2)
            .clamp(PAGE_BITS.0, PAGE_BITS.1);
        let pages = slots.div_ceil(1 << bits);
        Self {
            pages: (0..pages).map(|_| OnceLock::new()).collect(),
            bits,
            far: OnceLock::new(),
        }
    }

    /// What belongs to a virtual CPU, made at the first call. O(1).
    #[inline]
    pub(crate) fn of(&self, vcpu: usize) -> &T {
        let Some(page) = self.pages.get(vcpu >> self.bits) else {
            return self.beyond(vcpu);
        };
        let page = page.get_or_init(|| self.page());
        page[vcpu & ((1 << self.bits) - 1)].get_or_init(T::default)
    }

    #[cold]
    fn beyond(&self, vcpu: usize) -> &T {
        let far = self.far.get_or_init(|| Box::new(Self::new(FAR_SLOTS)));
        far.of(vcpu - (self.pages.len() << self.bits))
    }

    #[cold]
    fn page(&self) -> Page<T> {
        (0..1 << self.bits).map(|_| OnceLock::new()).collect()
    }

    /// All that were made, in the order of the virtual CPUs. O(slots).
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let tables = std::iter::successors(Some(self), |table| table.far.get().map(|far| &**far));
        let pages = tables.flat_map(|table| table.pages.iter().filter_map(OnceLock::get));
        pages.flat_map(|page| page.iter().filter_map(OnceLock::get))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn each_virtual_cpu_has_its_own_place() {
        for slots in [1, 2, 3, 4, 5, 63, 64, 65, 128, 1_000, 2_048] {
            let table = PerVcpu::<AtomicUsize>::new(slots);
            for vcpu in (0..slots).rev() {
                assert_eq!(table.of(vcpu).fetch_add(vcpu + 1, Ordering::Relaxed), 0);
            }
            assert_eq!(table.of(slots - 1).load(Ordering::Relaxed), slots);
            let places = table.iter().map(|place| place.load(Ordering::Relaxed));
            assert!(places.eq(1..=slots), "{slots}");
            for vcpu in slots..slots + 600 {
                table.of(vcpu).store(vcpu + 1, Ordering::Relaxed);
            }
            let places = table.iter().map(|place| place.load(Ordering::Relaxed));
            assert!(places.eq(1..=slots + 600), "beyond {slots}");
        }
    }

    /// Hazard: a group that runs on one of many virtual CPUs pays for all of them.
    #[test]
    fn places_that_nobody_asked_for_take_no_memory() {
        for (slots, bytes) in [(4, 200), (64, 400), (256, 700), (2_048, 2_100)] {
            let table = PerVcpu::<Box<u64>>::new(slots);
            table.of(slots - 1);
            let list = size_of_val(&*table.pages);
            let made = table.pages.iter().filter_map(OnceLock::get);
            let pages: usize = made.map(|page| size_of_val(&**page)).sum();
            assert!(list + pages <= bytes, "{slots}: {list} + {pages}");
        }
    }
}
