//! Which keys of a cluster share a node, so that the calls of a round trip go in one batch a node.
//!
//! # What a batch may not cost
//! The client crate follows redirections, but of a batch as a whole: one call whose slot has moved sends all of them to the other node, which
//! sends the rest back, until it gives up. A call that is repeated is answered as the first time (its sequence number), so that costs time and
//! nothing else, and happens once:
//!
//! | the last exchange in batches | the next |
//! |---|---|
//! | was answered by every node | by the same map |
//! | was redirected, is failing, or is not answered yet | call by call, [`SINGLY`] times, as the client crate does by itself; then by a new map |
//!
//! So the map is taken out before an exchange and put back once every node answered: what nobody answers never puts it back. A call whose slot nobody
//! has goes by itself as well, and fails by itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use ::redis::{Arg, Cmd};

/// For how many exchanges calls go one by one after a batch failed. Default: 16, some seconds of leases.
const SINGLY: u32 = 16;

/// How many slots a cluster has, by its protocol.
const SLOTS: u16 = 16_384;

/// A server of a cluster that has keys of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Master {
    pub(super) address: (String, u16),
    /// First and last slots.
    ranges: Vec<(u16, u16)>,
}

/// The masters that a node of the cluster names, by its answer to `CLUSTER NODES`: one line a node, `id host:port@bus[,hostname] flags master
/// ping pong epoch link slots..`. What it says otherwise is passed over.
pub(super) fn read_masters(text: &str) -> Vec<Master> {
    let range = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let range = (first.parse().ok()?, last.parse().ok()?);
        // A slot on its way is in brackets; it is still the old node's.
        (range.0 <= range.1 && range.1 < SLOTS).then_some(range)
    };
    let master = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (address, flags) = (words.get(1)?, words.get(2)?);
        if !flags.contains("master") || flags.contains("fail") || flags.contains("noaddr") {
            return None;
        }
        let (host, port) = address.split('@').next()?.rsplit_once(':')?;
        let slots = words.get(8..).unwrap_or_default();
        Some(Master {
            address: (host.to_owned(), port.parse().ok()?),
            ranges: slots.iter().filter_map(|word| range(word)).collect(),
        })
    };
    text.lines().filter_map(master).collect()
}

/// The node of each slot, as a number; by the last slot of each range.
#[derive(Debug)]
pub(super) struct Map(BTreeMap<u16, (u16, usize)>);

impl Map {
    pub(super) fn new(masters: &[Master]) -> Map {
        let ranges = masters.iter().enumerate();
        let ranges = ranges.flat_map(|(node, master)| {
            let ranges = master.ranges.iter();
            ranges.map(move |(first, last)| (*last, (*first, node)))
        });
        Map(ranges.collect())
    }

    fn node_of(&self, slot: u16) -> Option<usize> {
        let (_, (first, node)) = self.0.range(slot..).next()?;
        (*first <= slot).then_some(*node)
    }

    /// Which of the calls go together, each list with a slot that is its node's; calls whose node nobody knows come alone.
    pub(super) fn batches(&self, calls: &[Cmd]) -> Vec<(u16, Vec<usize>)> {
        let mut batches: BTreeMap<usize, (u16, Vec<usize>)> = BTreeMap::new();
        let mut alone = Vec::new();
        for (index, call) in calls.iter().enumerate() {
            let slot = slot_of(call);
            match self.node_of(slot) {
                Some(node) => {
                    let batch = batches.entry(node).or_insert((slot, Vec::new()));
                    batch.1.push(index);
                }
                None => alone.push((slot, vec![index])),
            }
        }
        batches.into_values().chain(alone).collect()
    }
}

/// The map, and whether it is to be used.
#[derive(Debug, Default)]
pub(super) struct Nodes(Mutex<(Option<Arc<Map>>, u32)>);

/// How the next exchange goes.
pub(super) enum Way {
    Singly,
    Batches(Option<Arc<Map>>),
}

impl Nodes {
    fn inner(&self) -> MutexGuard<'_, (Option<Arc<Map>>, u32)> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Takes the map out. Until [`Nodes::went_well`] exchanges go singly.
    pub(super) fn begin(&self) -> Way {
        let mut inner = self.inner();
        let (map, singly) = &mut *inner;
        if *singly > 0 {
            *singly -= 1;
            return Way::Singly;
        }
        *singly = SINGLY;
        Way::Batches(map.take())
    }

    pub(super) fn went_well(&self, map: Arc<Map>) {
        *self.inner() = (Some(map), 0);
    }
}

/// The slot of a call of our functions: of the hash tag of its first key.
fn slot_of(call: &Cmd) -> u16 {
    // FCALL, the function, how many keys.
    let key = match call.args_iter().nth(3) {
        Some(Arg::Simple(key)) => key,
        _ => b"",
    };
    let tag = key.split(|byte| *byte == b'{').nth(1);
    let tag = tag.and_then(|rest| rest.split(|byte| *byte == b'}').next());
    checksum(tag.filter(|tag| !tag.is_empty()).unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM (polynomial 0x1021, from 0), as the cluster's specification has it for slots.
fn checksum(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        let sum = sum ^ (u16::from(*byte) << 8);
        (0..8).fold(sum, |sum, _| {
            let shifted = sum << 1;
            if sum & 0x8000 == 0 {
                shifted
            } else {
                shifted ^ 0x1021
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(key: &str) -> Cmd {
        let mut call = ::redis::cmd("FCALL");
        call.arg("f").arg(3).arg(key).arg("other").arg("third");
        call
    }

    #[test]
    fn slots_are_those_of_the_cluster() {
        assert_eq!(checksum(b"123456789"), 0x31c3, "as the specification says");
        // What a server says to `CLUSTER KEYSLOT`.
        assert_eq!(slot_of(&call("foo")), 12_182);
        assert_eq!(slot_of(&call("quotient:1:{foo}:tenant")), 12_182);
    }

    #[test]
    fn masters_and_their_slots_are_read_and_nonsense_is_passed_over() {
        let text = "aa 10.0.0.1:7000@17000,one master - 0 1 2 connected 0-100 200 [93->-bb]\n\
            bb 10.0.0.2:7000@17000 myself,master - 0 1 3 connected 101-199 9-3 5-99999\n\
            cc 10.0.0.3:7000@17000 slave aa 0 1 2 connected\n\
            dd 10.0.0.4:7000@17000 master,fail - 0 1 4 disconnected 201-300\n\
            ee\n\nff ::: master - 0 1 5 connected 400";
        let masters = read_masters(text);
        let expected = [
            ("10.0.0.1", vec![(0, 100), (200, 200)]),
            ("10.0.0.2", vec![(101, 199)]),
        ];
        let expected = expected.map(|(host, ranges)| Master {
            address: (host.to_owned(), 7_000),
            ranges,
        });
        assert_eq!(masters, expected);
        let map = Map::new(&masters);
        let nodes = [0, 100, 101, 199, 200, 201, 16_383].map(|slot| map.node_of(slot));
        let (one, two) = (Some(0), Some(1));
        assert_eq!(nodes, [one, one, two, two, one, None, None]);
    }

    #[test]
    fn calls_of_one_node_go_together_and_those_of_nobody_alone() {
        let calls: Vec<Cmd> = ["{a}", "{b}", "{a}x", "{foo}", "{bar}"].map(call).into();
        let slots: Vec<u16> = calls.iter().map(slot_of).collect();
        assert_eq!(slots[0], slots[2]);
        // Two of the others on one node, the last two on none.
        let nodes = [(0, slots[0]), (1, slots[1])];
        let map = Map(nodes.map(|(node, slot)| (slot, (slot, node))).into());
        let mut batches = map.batches(&calls);
        batches.sort_by(|one, other| one.1.cmp(&other.1));
        let alone = |index: usize| (slots[index], vec![index]);
        assert_eq!(
            batches,
            [(slots[0], vec![0, 2]), alone(1), alone(3), alone(4)]
        );
    }

    #[test]
    fn what_was_given_up_goes_singly_for_a_while_and_then_by_a_new_map() {
        let nodes = Nodes::default();
        assert!(matches!(nodes.begin(), Way::Batches(None)));
        nodes.went_well(Arc::new(Map::new(&[])));
        assert!(matches!(nodes.begin(), Way::Batches(Some(_))));
        // It never went well.
        for _ in 0..SINGLY {
            assert!(matches!(nodes.begin(), Way::Singly));
        }
        assert!(matches!(nodes.begin(), Way::Batches(None)));
    }
}
