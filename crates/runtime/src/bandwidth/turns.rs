//! A queue in which the branches of the tree of groups take turns.
//!
//! What comes first is not what came first, or whoever has most in the queue has most of what takes from it: at each group its own entries are one branch, each group below is another, and
//! they are served one after another. So of the groups beside each other nobody has more than its turn, however many entries or groups there are in it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// Entries by the groups that they are of. A group is a number that no other one below the same group has.
#[derive(Debug)]
pub(super) struct Turns<T> {
    /// What is of this group itself.
    own: VecDeque<T>,
    /// Groups below that have any.
    below: BTreeMap<usize, Turns<T>>,
    /// Who was served last: a group below, or none for its own.
    last: Option<usize>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            own: VecDeque::new(),
            below: BTreeMap::new(),
            last: None,
        }
    }
}

impl<T> Turns<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty() && self.below.is_empty()
    }

    /// Adds an entry of the group to which `path` leads from here. O(depth x log groups).
    pub(super) fn push(&mut self, path: impl IntoIterator<Item = usize>, entry: T) {
        let group = path
            .into_iter()
            .fold(self, |group, next| group.below.entry(next).or_default());
        group.own.push_back(entry);
    }

    /// Takes an entry of whose turn it is. O(depth x log groups).
    pub(super) fn pop(&mut self) -> Option<T> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.below.range((after, Bound::Unbounded)).next();
        let next = next.map(|(group, _)| *group);
        // Its own are served once in each round, at its end.
        if next.is_none() && self.last.is_some() && !self.own.is_empty() {
            self.last = None;
            return self.own.pop_front();
        }
        let Some(group) = next.or_else(|| self.below.keys().next().copied()) else {
            return self.own.pop_front();
        };
        self.last = Some(group);
        let below = self.below.get_mut(&group)?;
        let entry = below.pop();
        if below.is_empty() {
            self.below.remove(&group);
        }
        entry
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The order in which all are served.
    fn served(turns: &mut Turns<char>) -> String {
        std::iter::from_fn(|| turns.pop()).collect()
    }

    #[test]
    fn groups_beside_each_other_take_turns_however_many_entries_they_have() {
        let mut turns = Turns::default();
        for _ in 0..5 {
            turns.push([1], 'a');
        }
        turns.push([2], 'b');
        turns.push([2], 'b');
        turns.push([3], 'c');
        assert_eq!(served(&mut turns), "abcabaaa");
        assert!(turns.is_empty());
    }

    #[test]
    fn many_groups_below_one_are_one_turn() {
        let mut turns = Turns::default();
        for group in 10..15 {
            turns.push([1, group], 'a');
        }
        for _ in 0..3 {
            turns.push([2], 'b');
        }
        assert_eq!(served(&mut turns), "abababaa");
    }

    #[test]
    fn own_entries_are_one_branch_more() {
        let mut turns = Turns::default();
        for _ in 0..3 {
            turns.push([], 'o');
            turns.push([1], 'a');
            turns.push([2], 'b');
        }
        assert_eq!(served(&mut turns), "aboaboabo");
    }

    #[test]
    fn entries_of_a_group_stay_in_order_and_none_is_lost_among_those_that_come() {
        let mut turns = Turns::default();
        let mut out = Vec::new();
        for round in 0..100 {
            turns.push([round % 7, round % 3], round);
            turns.push([round % 7], round);
            if round % 2 == 0 {
                out.extend(turns.pop());
            }
        }
        out.extend(std::iter::from_fn(|| turns.pop()));
        assert!(turns.is_empty());
        let mut all = out.clone();
        all.sort_unstable();
        let expected: Vec<_> = (0..100).flat_map(|round| [round, round]).collect();
        assert_eq!(all, expected);
    }
}
