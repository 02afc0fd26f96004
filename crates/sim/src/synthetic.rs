//! Workloads made of a few figures. Each function adds one workload (and its meter, under the same name) to a plan.

use crate::plan::{Plan, Source, TaskPlan, WorkloadPlan};
use crate::program::{ClockRead, Program, Step};
use crate::random::Span;
use quotient_core::{Nanos, Weight};

/// Index of a group in a plan; `None` is the root.
pub type GroupIndex = Option<u32>;

/// Tasks that share a program.
pub(crate) fn tasks(group: GroupIndex, program: u32, count: u32) -> Vec<TaskPlan> {
    let task = TaskPlan {
        group,
        program,
        weight: Weight::DEFAULT,
        slice: None,
        begin: Nanos::ZERO,
        cpu: None,
        cpuset: None,
    };
    vec![task; count as usize]
}

pub(crate) fn add(plan: &mut Plan, name: &str, tasks: Vec<TaskPlan>) {
    plan.workloads.push(WorkloadPlan {
        name: name.into(),
        tasks,
    });
}

/// `threads` tasks that compute without end.
pub fn spinners(plan: &mut Plan, name: &str, group: GroupIndex, threads: u32) {
    // An hour at a time: nobody is to look at them but the scheduler.
    let program = plan.program(Program::forever([Step::Run(Nanos::from_secs(3600).into())]));
    add(plan, name, tasks(group, program, threads));
}

/// `threads` tasks that compute `work` each and end.
pub fn once(plan: &mut Plan, name: &str, group: GroupIndex, threads: u32, work: Span) {
    let program = plan.program(Program::new([Step::Run(work)]));
    add(plan, name, tasks(group, program, threads));
}

/// Requests that arrive on their own, served by `threads` tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenLoop {
    /// Tasks that serve.
    pub threads: u32,
    /// CPU time of one part of a request.
    pub work: Span,
    /// From one request to the next.
    pub gap: Span,
    /// Parts that a request falls into, which several tasks may serve at once.
    pub parts: u32,
    /// When the first request comes.
    pub begin: Nanos,
}

/// An open loop: requests come whether or not anybody is ready. Times are from arrival to the end of the last part.
pub fn open_loop(plan: &mut Plan, name: &str, group: GroupIndex, shape: OpenLoop) {
    let (queue, meter) = (plan.queue(), plan.meter(name));
    let program = plan.program(Program::forever([
        Step::Take(queue),
        Step::Run(shape.work),
        Step::Finish(meter),
    ]));
    add(plan, name, tasks(group, program, shape.threads));
    plan.sources.push(Source {
        queue,
        begin: shape.begin,
        gap: shape.gap,
        parts: shape.parts,
        times: Vec::new(),
        works: Vec::new(),
    });
}

/// A closed loop: each of `threads` tasks serves a request, thinks, and serves the next.
pub fn closed_loop(
    plan: &mut Plan,
    name: &str,
    group: GroupIndex,
    threads: u32,
    work: Span,
    think: Span,
) {
    let meter = plan.meter(name);
    let program = plan.program(Program::forever([
        Step::StampWoken,
        Step::Run(work),
        Step::Lap(meter),
        Step::Sleep(think),
    ]));
    add(plan, name, tasks(group, program, threads));
}

/// `threads` tasks that each compute `work` at the beginning of every period, all at the same time.
pub fn periodic(
    plan: &mut Plan,
    name: &str,
    group: GroupIndex,
    threads: u32,
    work: Span,
    period: Nanos,
) {
    let meter = plan.meter(name);
    let program = plan.program(Program::forever([
        Step::StampWoken,
        Step::Run(work),
        Step::Lap(meter),
        Step::Every(period),
    ]));
    add(plan, name, tasks(group, program, threads));
}

/// Two tasks that hand one token back and forth `rounds` times over two pipes, `work` each time; the meter counts
/// rounds. `cpu` pins them to one CPU at the start, which is where two that alternate stay.
pub fn pipe_test(
    plan: &mut Plan,
    name: &str,
    group: GroupIndex,
    rounds: u32,
    work: Span,
    cpu: Option<u32>,
) {
    let (there, back, meter) = (plan.channel(0), plan.channel(0), plan.meter(name));
    let ping = plan.program(Program::times(
        rounds,
        [
            Step::Run(work),
            Step::Post(there),
            Step::Wait(back),
            Step::Count(meter),
        ],
    ));
    let pong = plan.program(Program::times(
        rounds,
        [Step::Wait(there), Step::Run(work), Step::Post(back)],
    ));
    let mut both = tasks(group, ping, 1);
    both.extend(tasks(group, pong, 1));
    for task in &mut both {
        task.cpu = cpu;
    }
    add(plan, name, both);
}

/// `teams` teams of `fan` senders and `fan` receivers; each sender sends `loops` messages to each receiver of its team,
/// computing `work` for each, as does the receiver.
pub fn messaging(
    plan: &mut Plan,
    name: &str,
    group: GroupIndex,
    teams: u32,
    fan: u32,
    loops: u32,
    work: Span,
) {
    let mut all = Vec::new();
    for _ in 0..teams {
        let inboxes: Vec<u32> = (0..fan).map(|_| plan.channel(0)).collect();
        let mut round = Vec::new();
        for &inbox in &inboxes {
            round.extend([Step::Run(work), Step::Post(inbox)]);
        }
        let sender = plan.program(Program::times(loops, round));
        all.extend(tasks(group, sender, fan));
        for inbox in inboxes {
            let receiver = plan.program(Program::times(
                loops.saturating_mul(fan),
                [Step::Wait(inbox), Step::Run(work)],
            ));
            all.extend(tasks(group, receiver, 1));
        }
    }
    add(plan, name, all);
}

/// A query plan of stages that run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// Pipelines.
    pub count: u32,
    /// Lanes of each: a producer and a consumer.
    pub lanes: u32,
    /// CPU time of a producer, and of a consumer, for a batch.
    pub work: Span,
    /// CPU time of the merge for a batch.
    pub merge: Span,
}

/// Batches that a channel of a pipeline has room for.
const ROOM: u32 = 2;

/// Pipelines as query engines run them: in each lane a producer puts batches into a bounded channel, from which a consumer puts
/// what it makes of them into another, where a merge takes the batches of all lanes. The meter counts merged batches.
pub fn pipeline(plan: &mut Plan, name: &str, group: GroupIndex, shape: Pipeline) {
    let (mut all, meter) = (Vec::new(), plan.meter(name));
    for _ in 0..shape.count {
        // Of each channel the room that is left and the batches in it. What a stage takes it works on outside.
        let (room, merged) = (plan.channel(ROOM), plan.channel(0));
        for _ in 0..shape.lanes {
            let (room_here, made) = (plan.channel(ROOM), plan.channel(0));
            let producer = [
                Step::Run(shape.work),
                Step::Wait(room_here),
                Step::Post(made),
            ];
            let consumer = [
                Step::Wait(made),
                Step::Post(room_here),
                Step::Run(shape.work),
                Step::Wait(room),
                Step::Post(merged),
            ];
            for program in [Program::forever(producer), Program::forever(consumer)] {
                let program = plan.program(program);
                all.extend(tasks(group, program, 1));
            }
        }
        let merge = plan.program(Program::forever([
            Step::Wait(merged),
            Step::Post(room),
            Step::Run(shape.merge),
            Step::Count(meter),
        ]));
        all.extend(tasks(group, merge, 1));
    }
    add(plan, name, all);
}

/// A build: what `make -j` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// Compiler runs.
    pub jobs: u32,
    /// How many at a time.
    pub parallel: u32,
    /// CPU time of one in user mode.
    pub work: Span,
    /// CPU time of one in the kernel.
    pub kernel: Span,
    /// Waiting for the disk in the middle of one.
    pub wait: Span,
}

/// A build of independent jobs; the meter's times are those of single jobs.
pub fn build(plan: &mut Plan, name: &str, group: GroupIndex, shape: Build) {
    let (slots, meter) = (plan.channel(shape.parallel), plan.meter(name));
    let program = plan.program(Program::new([
        Step::Wait(slots),
        Step::Stamp,
        Step::Kernel(shape.kernel),
        Step::Sleep(shape.wait),
        Step::Run(shape.work),
        Step::Lap(meter),
        Step::Post(slots),
        Step::Exit,
    ]));
    add(plan, name, tasks(group, program, shape.jobs));
}

/// A message thread that wakes `workers` one after another as they ask for work. A request is two sleeps of `pause` with
/// `work` after each.
pub fn wake_and_work(
    plan: &mut Plan,
    name: &str,
    group: GroupIndex,
    workers: u32,
    work: Span,
    pause: Span,
) {
    let (asks, meter) = (plan.channel(0), plan.meter(name));
    let mut all = Vec::new();
    let mut messenger = Vec::new();
    for _ in 0..workers {
        let inbox = plan.channel(0);
        messenger.extend([Step::Wait(asks), Step::PostOne(inbox)]);
        let program = plan.program(Program::forever([
            Step::Post(asks),
            Step::Wait(inbox),
            Step::Stamp,
            Step::Sleep(pause),
            Step::Run(work),
            Step::Sleep(pause),
            Step::Run(work),
            Step::Lap(meter),
        ]));
        all.extend(tasks(group, program, 1));
    }
    let program = plan.program(Program::forever(messenger));
    all.extend(tasks(group, program, 1));
    add(plan, name, all);
}

/// `threads` tasks that read the clock of their process `calls / threads` times each.
pub fn clock_readers(
    plan: &mut Plan,
    name: &str,
    group: GroupIndex,
    threads: u32,
    calls: u32,
    how: ClockRead,
) {
    let meter = plan.meter(name);
    let program = plan.program(Program::times(
        calls / threads.max(1),
        [Step::ReadClock(how), Step::Count(meter)],
    ));
    add(plan, name, tasks(group, program, threads));
}

/// Rewriting the code of a key's sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyFlips {
    /// Places in the code.
    pub sites: u32,
    /// Whether all are rewritten together or one after another.
    pub batched: bool,
    /// From one flip to the next.
    pub pause: Nanos,
    /// Writing one place.
    pub write: Nanos,
}

/// A task that flips a static key again and again. Each rewrite makes every CPU look three times: after the trap byte,
/// after the tail, after the first byte; the sites trap whoever passes between the first and the last. The meter's
/// times are those of whole flips.
pub fn key_flips(plan: &mut Plan, name: &str, group: GroupIndex, shape: KeyFlips) {
    let meter = plan.meter(name);
    let (rounds, together) = if shape.batched {
        (1, shape.sites)
    } else {
        (shape.sites, 1)
    };
    let write = Step::Kernel(Nanos(shape.write.0.saturating_mul(u64::from(together))).into());
    let mut steps = vec![Step::Stamp];
    let first = 1;
    for exposed in [together, together, 0] {
        steps.extend([write, Step::Synchronize { exposed }]);
    }
    if rounds > 1 {
        steps.push(Step::Repeat {
            counter: 0,
            times: rounds - 1,
            to: first,
        });
    }
    steps.extend([Step::Lap(meter), Step::Sleep(shape.pause.into())]);
    let program = plan.program(Program::forever(steps));
    add(plan, name, tasks(group, program, 1));
}
