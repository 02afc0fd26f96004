//! Machines: nodes, cores, hyperthreads, distances, and the tick.

use core::fmt;
use quotient_core::{Config, CpuPlace, Topology};

/// When the periodic tick of a CPU runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ticks {
    /// Only while it can change who runs: more than one runnable task, a limit, or tasks waiting elsewhere. A CPU that is left alone by
    /// ticks is still charged before anybody comes, goes or is weighed anew, wherever that is, if the last time was a tick ago. What is
    /// left out costs no [`crate::Costs::tick`], and times at which groups' shares are rounded and balancers look around differ.
    #[default]
    Needed,
    /// While the CPU runs anything (the kernel's default).
    Busy,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// NUMA nodes.
    pub nodes: u32,
    /// Last-level caches of a node, each shared by as many of its cores.
    pub caches: u32,
    /// Cores of a node.
    pub cores: u32,
    /// Hyperthreads of a core.
    pub threads: u32,
    /// Ticks a second of each CPU.
    pub hz: u32,
    /// Whether the CPUs' ticks are spread evenly over the period. If not, all tick at once.
    pub tick_skew: bool,
    /// When ticks run.
    pub ticks: Ticks,
    /// Speed of a hyperthread while another one of its core is busy, per cent of a core of its own.
    pub smt_speed: u32,
    /// Distances between nodes as the firmware tells them (10 is here); empty: 20 between any two.
    pub distances: Vec<Vec<u32>>,
}

/// An impossible machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineError {
    /// Which figure.
    pub field: &'static str,
    /// What it is.
    pub value: String,
    /// What it may be.
    pub allowed: String,
}

impl fmt::Display for MachineError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MachineError {
            field,
            value,
            allowed,
        } = self;
        write!(formatter, "{field} = {value} is not {allowed}")
    }
}

impl std::error::Error for MachineError {}

impl Machine {
    /// One node of `cpus` cores at HZ=250, each ticking at a time of its own.
    pub fn flat(cpus: u32) -> Machine {
        Machine {
            nodes: 1,
            caches: 1,
            cores: cpus,
            threads: 1,
            hz: 250,
            tick_skew: true,
            ticks: Ticks::Needed,
            smt_speed: 62,
            distances: Vec::new(),
        }
    }

    /// Reads `CORES`, `NODESxCORES` or `NODESxCORESxTHREADS`; the rest is as in [`Machine::flat`].
    ///
    /// # Errors
    /// [`MachineError`] for anything else and for machines that cannot be.
    pub fn parse(shape: &str) -> Result<Machine, MachineError> {
        let bad = || MachineError {
            field: "shape",
            value: format!("{shape:?}"),
            allowed: "CORES, NODESxCORES or NODESxCORESxTHREADS, such as 8x10".into(),
        };
        let parts: Vec<u32> = shape
            .split('x')
            .map(|part| part.trim().parse().map_err(|_| bad()))
            .collect::<Result<_, _>>()?;
        let (nodes, cores, threads) = match parts[..] {
            [cores] => (1, cores, 1),
            [nodes, cores] => (nodes, cores, 1),
            [nodes, cores, threads] => (nodes, cores, threads),
            _ => return Err(bad()),
        };
        let machine = Machine {
            nodes,
            cores,
            threads,
            ..Machine::flat(1)
        };
        machine.validate()?;
        Ok(machine)
    }

    /// Number of CPUs: hyperthreads of all cores of all nodes. Saturates for impossible machines.
    pub fn cpus(&self) -> u32 {
        self.nodes
            .saturating_mul(self.cores)
            .saturating_mul(self.threads)
    }

    /// Checks every figure against its range.
    ///
    /// # Errors
    /// [`MachineError`] names the first that is wrong.
    pub fn validate(&self) -> Result<(), MachineError> {
        let figures = [
            ("nodes", self.nodes, 1, 256),
            ("caches", self.caches, 1, self.cores.max(1)),
            ("cores", self.cores, 1, Config::CPUS_MAX),
            ("threads", self.threads, 1, 8),
            ("hz", self.hz, 1, 100_000),
            ("smt_speed", self.smt_speed, 1, 100),
            ("cpus", self.cpus(), 1, Config::CPUS_MAX),
        ];
        for (field, value, least, most) in figures {
            if !(least..=most).contains(&value) {
                return Err(MachineError {
                    field,
                    value: value.to_string(),
                    allowed: format!("in {least}..={most}"),
                });
            }
        }
        if !self.cores.is_multiple_of(self.caches) {
            return Err(MachineError {
                field: "caches",
                value: self.caches.to_string(),
                allowed: format!("a divisor of the {} cores of a node", self.cores),
            });
        }
        self.validate_distances()
    }

    fn validate_distances(&self) -> Result<(), MachineError> {
        let wrong = |value: String, allowed: String| {
            Err(MachineError {
                field: "distances",
                value,
                allowed,
            })
        };
        let nodes = self.nodes as usize;
        let rows = self.distances.len();
        if rows != 0 && (rows != nodes || self.distances.iter().any(|row| row.len() != nodes)) {
            return wrong(
                format!("a table of {rows} rows"),
                format!("a table of {nodes} rows of {nodes}"),
            );
        }
        for (from, row) in self.distances.iter().enumerate() {
            for (to, &distance) in row.iter().enumerate() {
                let allowed = if from == to { 10..=10 } else { 11..=255 };
                if !allowed.contains(&distance) {
                    let place = format!("{distance} (from {from} to {to})");
                    return wrong(place, "10 on the diagonal and 11..=255 elsewhere".into());
                }
            }
        }
        Ok(())
    }

    /// CPUs of one node.
    pub fn node_cpus(&self) -> u32 {
        self.cores * self.threads
    }

    /// The node of a CPU. CPUs are numbered node by node, core by core, thread by thread.
    #[inline]
    pub fn node_of(&self, cpu: u32) -> u32 {
        cpu / self.node_cpus()
    }

    /// CPUs that share one last-level cache.
    pub fn cache_cpus(&self) -> u32 {
        self.node_cpus() / self.caches.max(1)
    }

    /// The last-level cache of a CPU, numbered as CPUs are.
    #[inline]
    pub fn cache_of(&self, cpu: u32) -> u32 {
        cpu / self.cache_cpus()
    }

    /// The first CPU of the core of `cpu`.
    #[inline]
    pub fn first_sibling(&self, cpu: u32) -> u32 {
        cpu - cpu % self.threads
    }

    /// Distance between the nodes of two CPUs, 10 for the same.
    pub fn node_distance(&self, one: u32, other: u32) -> u32 {
        let (one, other) = (self.node_of(one), self.node_of(other));
        if one == other {
            return 10;
        }
        let row = self.distances.get(one as usize);
        row.and_then(|row| row.get(other as usize))
            .copied()
            .unwrap_or(20)
    }

    /// The same for the balancer.
    pub fn topology(&self) -> Topology {
        let places = (0..self.cpus()).map(|cpu| CpuPlace {
            core: cpu / self.threads,
            cache: self.cache_of(cpu),
            node: self.node_of(cpu),
        });
        Topology::new(places.collect())
    }

    /// Length of a tick, ns.
    pub fn tick_length(&self) -> u64 {
        1_000_000_000 / u64::from(self.hz)
    }

    /// When the first tick of `cpu` is, ns.
    pub fn tick_phase(&self, cpu: u32) -> u64 {
        if self.tick_skew {
            self.tick_length() * u64::from(cpu) / u64::from(self.cpus())
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read() {
        let machine = Machine::parse("8x10x2").unwrap();
        assert_eq!((machine.nodes, machine.cores, machine.threads), (8, 10, 2));
        assert_eq!(machine.cpus(), 160);
        assert_eq!((machine.node_of(19), machine.node_of(20)), (0, 1));
        assert_eq!(machine.first_sibling(21), 20);
        assert_eq!(Machine::parse("24").unwrap().cpus(), 24);
    }

    #[test]
    fn a_node_may_have_several_caches() {
        let machine = Machine {
            caches: 2,
            ..Machine::parse("2x4x2").unwrap()
        };
        assert!(machine.validate().is_ok());
        assert_eq!(machine.cache_cpus(), 4);
        let caches: Vec<u32> = [0, 3, 4, 7, 8, 15]
            .map(|cpu| machine.cache_of(cpu))
            .to_vec();
        assert_eq!(caches, [0, 0, 1, 1, 2, 3]);
        let uneven = Machine {
            caches: 3,
            ..machine
        };
        let error = uneven.validate().unwrap_err().to_string();
        assert!(error.contains("caches = 3"), "{error}");
    }

    #[test]
    fn impossible_machines_are_named() {
        for shape in [
            "",
            "0",
            "8x",
            "1x2x3x4",
            "x",
            "-1",
            "65536x65536",
            "3x9999",
            "2x2x9",
        ] {
            assert!(Machine::parse(shape).is_err(), "{shape:?}");
        }
        let error = Machine::parse("4x4096").unwrap_err().to_string();
        assert_eq!(error, "cpus = 16384 is not in 1..=4096");
        let machine = Machine {
            distances: vec![vec![10, 21], vec![21, 11]],
            ..Machine::parse("2x2").unwrap()
        };
        assert!(machine.validate().is_err());
    }
}
