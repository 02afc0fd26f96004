//! CPUs that come and go.

use quotient_core::event::TaskId;
use quotient_core::{CpuId, Nanos};

use super::observe::Observer;
use super::{CpuState, Replay};

impl Replay {
    /// One that goes is not idle any more, and one that comes is. What ran there has left before.
    pub(super) fn plug<O: Observer>(
        &mut self,
        time: Nanos,
        cpu: CpuId,
        online: bool,
        observer: &mut O,
    ) {
        let before = self.cpus[&cpu];
        if !online && before.current.is_some_and(TaskId::is_idle) {
            observer.idled(self, cpu, before.since, time);
        }
        let state = CpuState {
            current: online.then_some(TaskId::IDLE),
            since: time,
            uncharged: 0,
        };
        self.cpus.insert(cpu, state);
    }
}
