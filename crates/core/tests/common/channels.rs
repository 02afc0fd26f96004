//! Bounded channels between the tasks of a pipeline.
//!
//! A stage computes on an item, puts it into `to` (if that is full it sleeps until somebody takes one), and takes the next
//! from `from` (if that is empty it sleeps until somebody puts one). Who ends a wait does for the sleeper what it waited
//! for, so a task that is woken always has an item to compute on. Each stage begins with one.

use std::collections::VecDeque;

/// The channels of a machine, and the lengths of items.
#[derive(Default)]
pub struct Channels {
    all: Vec<Channel>,
    drawn: u64,
}

struct Channel {
    room: usize,
    items: usize,
    /// Who sleeps because it is empty, and who because it is full: never both.
    takers: VecDeque<usize>,
    /// With the channel that each takes from.
    givers: VecDeque<(usize, Option<usize>)>,
}

impl Channels {
    /// A channel with room for so many items.
    pub fn open(&mut self, room: usize) -> usize {
        self.all.push(Channel {
            room,
            items: 0,
            takers: VecDeque::new(),
            givers: VecDeque::new(),
        });
        self.all.len() - 1
    }

    /// A task has computed. Returns whether it has the next item at once; who is to be woken is added to `woken`.
    pub fn pass_on(
        &mut self,
        task: usize,
        from: Option<usize>,
        to: Option<usize>,
        woken: &mut Vec<usize>,
    ) -> bool {
        if let Some(to) = to {
            let channel = &mut self.all[to];
            if let Some(taker) = channel.takers.pop_front() {
                woken.push(taker);
            } else if channel.items < channel.room {
                channel.items += 1;
            } else {
                channel.givers.push_back((task, from));
                return false;
            }
        }
        self.take(task, from, woken)
    }

    /// Takes an item for a task, which waits if there is none. Room is for the first that waits for it, and so on.
    fn take(&mut self, task: usize, from: Option<usize>, woken: &mut Vec<usize>) -> bool {
        let Some(from) = from else {
            return true;
        };
        let channel = &mut self.all[from];
        if channel.items == 0 {
            channel.takers.push_back(task);
            return false;
        }
        match channel.givers.pop_front() {
            None => channel.items -= 1,
            Some((giver, its_source)) => {
                if self.take(giver, its_source, woken) {
                    woken.push(giver);
                }
            }
        }
        true
    }

    /// A length from `least` to `most`, the same in each run: splitmix64.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        self.drawn += 1;
        let mut mixed = self.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        least + (mixed ^ (mixed >> 31)) % (most - least + 1)
    }
}
