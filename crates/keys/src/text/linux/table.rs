//! The table of sites that the linker gathered, indexed by key and by address.
//!
//! Each site leaves one 16-byte entry (see `__layout!`) in a read-only section: the distances from the entry to the site, to the load
//! of the key, and to the key; the lowest bit of the last one is the bias. Distances need no relocation at load time.
//! The section is never written; what is sorted is a copy.

use core::ops::Range;

use quotient_key::engine::is_ours;
use quotient_key::{FlipError, Key};

use super::arch;
use super::arch::site::{Form, Site};

/// Size of an entry, bytes.
const ENTRY_BYTES: usize = core::mem::size_of::<Entry>();

#[repr(C, align(8))]
struct Entry {
    code: i32,
    target: i32,
    key_and_bias: i64,
}

/// A key and its run in [`Table::by_key`].
struct KeyRun {
    key: &'static Key,
    run: Range<usize>,
}

/// All sites of this program or library.
pub(super) struct Table {
    /// By address.
    pub(super) sites: Vec<Site>,
    /// Indices into `sites`, by key and within a key by address.
    pub(super) by_key: Vec<u32>,
    /// By address of the key.
    keys: Vec<KeyRun>,
}

impl Table {
    pub(super) const fn empty() -> Self {
        Self {
            sites: Vec::new(),
            by_key: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Reads the section. Linear, and n log n for the sorting.
    pub(super) fn load() -> Self {
        let entries = section();
        let mut raw: Vec<(usize, &Entry)> = entries
            .iter()
            .map(|entry| (key_address(entry), entry))
            .collect();
        raw.sort_unstable_by_key(|&(key, entry)| (key, code_address(entry)));

        let mut table = Self::empty();
        for (key, entry) in raw {
            // SAFETY: entries of this layout are written by `__site!` alone, which takes the address of a `static` key or of
            // an element of a `static` array of keys (`branched.rs` checks the type), a transparent wrapper of `Key`. Another
            // copy of that crate which has this layout has the same `Key`, or the layout's number would be another.
            let key: &'static Key = unsafe { &*core::ptr::with_exposed_provenance::<Key>(key) };
            // Its own copy's engine, or nobody, flips it.
            if !is_ours(key) {
                continue;
            }
            let is_new = table
                .keys
                .last()
                .is_none_or(|last| !core::ptr::eq(last.key, key));
            if is_new {
                let start = table.sites.len();
                table.keys.push(KeyRun {
                    key,
                    run: start..start,
                });
            }
            let key_index = u32::try_from(table.keys.len() - 1).unwrap_or(u32::MAX);
            let bias = entry.key_and_bias & 1 == 1;
            // SAFETY: `code` is the address of the jump that the macro emitted next to this entry.
            let site =
                unsafe { Site::new(code_address(entry), target_address(entry), key_index, bias) };
            if let (Some(site), Some(last)) = (site, table.keys.last_mut()) {
                table.sites.push(site);
                last.run.end = table.sites.len();
            }
        }
        table.sort_by_address();
        table
    }

    /// `sites` is sorted by key: keep that order in `by_key`, then sort the sites themselves by address.
    fn sort_by_address(&mut self) {
        let mut order: Vec<u32> = (0..self.sites.len()).map(|index| index as u32).collect();
        order.sort_unstable_by_key(|&index| self.sites[index as usize].code);
        self.by_key = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            self.by_key[old as usize] = new as u32;
        }
        self.sites.sort_unstable_by_key(|site| site.code);
    }

    /// Where the key's sites stand in `by_key`, ascending by address.
    pub(super) fn run_of(&self, key: &Key) -> Range<usize> {
        let address = |key: &Key| core::ptr::from_ref(key).addr();
        match self
            .keys
            .binary_search_by_key(&address(key), |run| address(run.key))
        {
            Ok(index) => self.keys[index].run.clone(),
            Err(_) => 0..0,
        }
    }

    /// Indices of the key's sites, ascending by address.
    pub(super) fn sites_of(&self, key: &Key) -> &[u32] {
        &self.by_key[self.run_of(key)]
    }

    /// The keys that have sites.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static Key> {
        self.keys.iter().map(|run| run.key)
    }

    /// The key of a site.
    pub(super) fn key_of(&self, site: &Site) -> &'static Key {
        self.keys[site.key as usize].key
    }

    /// Number of keys that have sites.
    pub(super) fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// Index of a key among those that have sites.
    pub(super) fn index_of(&self, key: &Key) -> Option<usize> {
        self.keys.iter().position(|run| core::ptr::eq(run.key, key))
    }

    /// Refuses a site that holds an instruction of somebody else.
    ///
    /// # Errors
    /// [`FlipError::UnexpectedOpcode`].
    pub(super) fn refuse_foreign(&self, site: &Site) -> Result<(), FlipError> {
        if site.is_ours() {
            return Ok(());
        }
        Err(FlipError::UnexpectedOpcode {
            key: self.key_of(site).name(),
            address: site.code,
            found: site.found(),
        })
    }

    /// Whether every site is a plain jump.
    pub(super) fn is_neutral(&self) -> bool {
        self.sites.iter().all(|site| site.form == Form::Jump)
    }
}

fn code_address(entry: &Entry) -> usize {
    core::ptr::from_ref(&entry.code)
        .addr()
        .wrapping_add_signed(entry.code as isize)
}

fn target_address(entry: &Entry) -> usize {
    core::ptr::from_ref(&entry.target)
        .addr()
        .wrapping_add_signed(entry.target as isize)
}

fn key_address(entry: &Entry) -> usize {
    core::ptr::from_ref(&entry.key_and_bias)
        .addr()
        .wrapping_add_signed(entry.key_and_bias as isize & !1)
}

/// The section's entries; empty if nothing in this program branches on a key.
fn section() -> &'static [Entry] {
    let (start, stop) = arch::section();
    if start == 0 {
        return &[];
    }
    // SAFETY: the linker defines the two symbols around the section, which holds nothing but 8-aligned entries of 16
    // bytes (the section's name carries the version of this layout), is mapped read-only and lives as long as this code.
    unsafe {
        core::slice::from_raw_parts(
            core::ptr::with_exposed_provenance(start),
            (stop - start) / ENTRY_BYTES,
        )
    }
}
