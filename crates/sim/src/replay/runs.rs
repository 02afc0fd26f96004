//! When tasks were on CPUs, and what of that they are billed for: a host may have run something else meanwhile.

/// A stretch of a task on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ran {
    /// From the begin of the recording, ns.
    pub(super) from: u64,
    pub(super) to: u64,
    /// What of it the task is billed for, ns; more than all of it where something was billed late.
    pub(super) charged: u64,
    pub(super) cpu: u32,
}

impl Ran {
    pub(super) fn earlier_by(mut self, begin: u64) -> Ran {
        self.from -= begin;
        self.to -= begin;
        self
    }

    /// What is billed of it in each part of that length: its number and the time, ns. The first part begins so long before the recording does. When the
    /// host took its part is not known: all the time alike.
    pub(super) fn pieces(self, length: u64, before: u64) -> impl Iterator<Item = (u64, u64)> {
        let whole = u128::from((self.to - self.from).max(1));
        let billed = move |time: u64| {
            u64::try_from(u128::from(time) * u128::from(self.charged) / whole).unwrap_or(u64::MAX)
        };
        let mut from = self.from;
        core::iter::from_fn(move || {
            let number = (from + before) / length;
            let to = self.to.min((number + 1) * length - before);
            let time = to.checked_sub(from).filter(|time| *time > 0)?;
            from = to;
            Some((number, billed(time)))
        })
    }
}

/// A stand-in is billed for less than this part of what the other CPUs are on average, per cent.
const STAND_IN_PERCENT: u128 = 10;

/// How many CPUs the machine had, of so many that were seen in a log of Quotient's own that does not say it. A virtual CPU that stands in for one that is stuck has a
/// number above all others, and is none of the machine's: it used a processor that another one was not using. So the last one does not count while it did little,
/// and the others could have done what was billed whenever all of them ran at once. O(runs log runs).
pub(super) fn machine_cpus<'a>(runs: impl Iterator<Item = &'a Ran>, seen: u32) -> u32 {
    let mut runs: Vec<Ran> = runs.copied().collect();
    let mut count = seen;
    while count > 1 {
        let Some(last) = runs.iter().map(|run| run.cpu).max() else {
            return count;
        };
        let billed = |is_last: bool| -> u128 {
            let those = runs.iter().filter(|run| (run.cpu == last) == is_last);
            those.map(|run| u128::from(run.charged)).sum()
        };
        let did_little =
            billed(true) * u128::from(count - 1) * 100 <= billed(false) * STAND_IN_PERCENT;
        if !did_little || needs_all(&runs, count) {
            return count;
        }
        runs.retain(|run| run.cpu != last);
        count -= 1;
    }
    count
}

/// Whether more was billed while so many ran at once than one less could have done.
fn needs_all(runs: &[Ran], count: u32) -> bool {
    // What is billed a ns of it, in thousandths.
    let rate = |run: &Ran| {
        let rate = u128::from(run.charged) * 1_000 / u128::from((run.to - run.from).max(1));
        i128::try_from(rate).unwrap_or(i128::MAX)
    };
    let mut steps: Vec<(u64, i32, i128)> = Vec::with_capacity(2 * runs.len());
    for run in runs {
        steps.push((run.from, 1, rate(run)));
        steps.push((run.to, -1, -rate(run)));
    }
    steps.sort_unstable();
    let (mut running, mut rates, mut last) = (0_i32, 0_i128, 0_u64);
    let (mut time, mut done) = (0_i128, 0_i128);
    for (at, change, rate) in steps {
        if i64::from(running) >= i64::from(count) {
            let since = i128::from(at - last);
            time += since;
            done += since.saturating_mul(rates);
        }
        (running, rates, last) = (running + change, rates + rate, at);
    }
    done > time.saturating_mul(i128::from(count - 1) * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(cpu: u32, from: u64, to: u64, charged: u64) -> Ran {
        Ran {
            from,
            to,
            charged,
            cpu,
        }
    }

    #[test]
    fn what_the_host_took_is_no_use() {
        let pieces: Vec<_> = ran(0, 50, 250, 100).pieces(100, 0).collect();
        assert_eq!(pieces, [(0, 25), (1, 50), (2, 25)]);
        assert_eq!(ran(0, 5, 5, 3).pieces(100, 0).count(), 0);
    }

    /// Hazard: a stand-in that ran for some ms is a CPU of the machine that is played, and a limit of all its CPUs is one of half of them more.
    #[test]
    fn a_stand_in_is_no_cpu_of_the_machine() {
        let two = [ran(0, 0, 1_000, 900), ran(1, 0, 1_000, 900)];
        let of = |more: &[Ran], seen| machine_cpus(two.iter().chain(more), seen);
        assert_eq!(of(&[], 2), 2);
        // Beside two that are stuck.
        let stuck = [ran(0, 2_000, 3_000, 100), ran(1, 2_000, 3_000, 100)];
        assert_eq!(
            of(&[&stuck[..], &[ran(2, 2_500, 2_550, 40)]].concat(), 3),
            2
        );
        // A third that was seldom needed, and then computed beside the others.
        assert_eq!(of(&[ran(2, 500, 600, 100)], 3), 3);
        // One that did as much as any.
        assert_eq!(of(&[ran(2, 2_000, 3_000, 900)], 3), 3);
        // Two of them.
        let both = [ran(2, 1_500, 1_550, 50), ran(3, 1_600, 1_650, 50)];
        assert_eq!(of(&both, 4), 2);
        assert_eq!(machine_cpus([].iter(), 1), 1);
    }
}
