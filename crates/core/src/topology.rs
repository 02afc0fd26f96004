//! Which CPUs are near each other.

use crate::units::CpuId;

/// Where a CPU sits. Equal numbers mean shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuPlace {
    /// Physical core: CPUs of one core share its execution units.
    pub core: u32,
    /// Last-level cache.
    pub cache: u32,
    /// NUMA node.
    pub node: u32,
}

/// How far two CPUs are apart, in order of the cost of moving a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// The same CPU.
    Same,
    /// Hyperthreads of one core.
    Core,
    /// Sharing the last-level cache.
    Cache,
    /// On the same NUMA node.
    Node,
    /// On another NUMA node.
    Remote,
}

/// The CPUs of a machine and where they sit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    places: Vec<CpuPlace>,
}

impl Topology {
    /// `cpus` equal CPUs sharing one cache: right for small machines and where nothing is known.
    pub fn flat(cpus: u32) -> Topology {
        Topology {
            places: (0..cpus)
                .map(|cpu| CpuPlace {
                    core: cpu,
                    cache: 0,
                    node: 0,
                })
                .collect(),
        }
    }

    /// CPUs in the order of their numbers.
    pub fn new(places: Vec<CpuPlace>) -> Topology {
        Topology { places }
    }

    /// Number of CPUs.
    pub fn cpus(&self) -> usize {
        self.places.len()
    }

    /// How far two CPUs are apart; a CPU that is not part of the topology is remote to all others.
    pub fn distance(&self, one: CpuId, other: CpuId) -> Distance {
        if one == other {
            return Distance::Same;
        }
        let places = (self.places.get(one.index()), self.places.get(other.index()));
        match places {
            (Some(here), Some(there)) if here.node != there.node => Distance::Remote,
            (Some(here), Some(there)) if here.cache != there.cache => Distance::Node,
            (Some(here), Some(there)) if here.core != there.core => Distance::Cache,
            (Some(_), Some(_)) => Distance::Core,
            _ => Distance::Remote,
        }
    }
}
