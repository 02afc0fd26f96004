//! From an address to the site there: what the signal handler searches. Needs nothing of the platform, so that its cost
//! can be measured everywhere.

/// All sites, by address. Addresses are kept as 32-bit distances from the lowest, apart from the rest, so that a search
/// among 16,000 sites touches few cache lines.
#[derive(Debug)]
pub struct Lookup {
    base: usize,
    distances: Vec<u32>,
    /// Jump target and key index of each site.
    answers: Vec<(usize, u32)>,
}

impl Lookup {
    /// Takes (address, target, key index), ascending by address. Sites 4 GiB above the first are left out: code is
    /// addressed with 32 bits.
    pub fn new(sites: impl Iterator<Item = (usize, usize, u32)>) -> Self {
        let mut lookup = Self {
            base: 0,
            distances: Vec::new(),
            answers: Vec::new(),
        };
        for (address, target, key) in sites {
            if lookup.distances.is_empty() {
                lookup.base = address;
            }
            if let Ok(distance) = u32::try_from(address.wrapping_sub(lookup.base)) {
                lookup.distances.push(distance);
                lookup.answers.push((target, key));
            }
        }
        lookup
    }

    /// Target and key index of the site at `address`. Binary search.
    #[inline]
    pub fn find(&self, address: usize) -> Option<(usize, u32)> {
        let distance = u32::try_from(address.wrapping_sub(self.base)).ok()?;
        let index = self.distances.binary_search(&distance).ok()?;
        self.answers.get(index).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_site_and_nothing_between() {
        let lookup =
            Lookup::new((0..1000).map(|index| (0x5000 + index * 16, 0x9000 + index, index as u32)));
        for index in 0..1000 {
            assert_eq!(
                lookup.find(0x5000 + index * 16),
                Some((0x9000 + index, index as u32))
            );
            assert_eq!(lookup.find(0x5001 + index * 16), None);
        }
        assert_eq!(lookup.find(0x4FFF), None);
        assert_eq!(lookup.find(0), None);
        assert_eq!(lookup.find(usize::MAX), None);
    }

    #[test]
    fn an_empty_table_finds_nothing() {
        assert_eq!(Lookup::new(core::iter::empty()).find(0), None);
    }
}
