//! Hazard: a tenant blocks in more polls than there can be threads for. Every virtual CPU came to sit on one of them, and everybody
//! else waited until it returned: 600 polls that block for three seconds made a neighbour wait for three seconds.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;
#[path = "common/preempted.rs"]
mod preempted;

use std::future::Future;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::eventually;
use preempted::{HANG, alone};
use quotient::{Group, JoinHandle, Preempt, Scheduler};

/// Long polls for which there are threads, and tasks that block: more than those, the virtual CPUs and their stand-ins together.
const BORNE_MAX: usize = 16;
const TASKS: usize = 48;

/// Where polls wait for the test.
#[derive(Default)]
struct Door {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Door {
    fn wait(&self) {
        let is_open = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(is_open, |is_open| !*is_open));
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// However the test ends: who blocks keeps the runtime from its end.
struct OpensAtLast(Arc<Door>);

impl Drop for OpensAtLast {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Runs `body` with two virtual CPUs and room for few long polls.
fn run<F: Future<Output = ()>>(body: impl FnOnce(Scheduler, Arc<Door>) -> F) {
    let _alone = alone();
    let runtime = common::runtime(2);
    runtime.block_on(async {
        let door = Arc::new(Door::default());
        let last = OpensAtLast(door.clone());
        let preempt = Preempt::default().max_borne(BORNE_MAX);
        let builder = Scheduler::builder().vcpus(2).preempt(preempt);
        let scheduler = builder.build().unwrap();
        let ended = tokio::time::timeout(HANG, body(scheduler.clone(), door)).await;
        assert!(ended.is_ok(), "hangs: {:?}", scheduler.preempt_stats());
        drop(last);
        let ended = tokio::time::timeout(HANG, scheduler.shutdown()).await;
        assert!(ended.is_ok(), "no end: {:?}", scheduler.preempt_stats());
    });
}

/// One task in each of `groups`, in turn, that blocks in its first poll until the door opens.
fn crowd(groups: &[Group], door: &Arc<Door>) -> Vec<JoinHandle<usize>> {
    let spawn = |number: usize| {
        let door = door.clone();
        groups[number % groups.len()].spawn(async move {
            quotient::block_in_place(|| door.wait());
            number
        })
    };
    (0..TASKS).map(spawn).collect()
}

/// `neighbour`'s tasks run while nobody has opened the door, until some of the crowd were kept back and for a while after that.
async fn neighbour_runs(scheduler: &Scheduler, neighbour: &Group) {
    let kept_back = || scheduler.preempt_stats().unwrap().kept_back > 0;
    let mut after = 0;
    while after < 100 {
        after += u32::from(kept_back());
        let answer = neighbour.spawn(async { 42 });
        let answer = tokio::time::timeout(HANG / 4, answer).await;
        let answer = answer
            .unwrap_or_else(|_| panic!("waits behind the crowd: {:?}", scheduler.preempt_stats()));
        assert_eq!(answer.unwrap(), 42);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let stats = scheduler.preempt_stats().unwrap();
    assert!(stats.borne < BORNE_MAX, "{stats:?}");
}

async fn all_come(tasks: Vec<JoinHandle<usize>>) {
    for (number, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap(), number);
    }
}

#[test]
fn who_blocks_in_hundreds_of_polls_makes_nobody_else_wait() {
    run(|scheduler, door| async move {
        let tenant = scheduler.group("tenant").unwrap().create().unwrap();
        let neighbour = scheduler.group("neighbour").unwrap().create().unwrap();
        let tasks = crowd(&[tenant], &door);
        neighbour_runs(&scheduler, &neighbour).await;
        assert!(tasks.iter().all(|task| !task.is_finished()));
        door.open();
        all_come(tasks).await;
    });
}

#[test]
fn a_tenant_gains_nothing_by_a_group_for_each_task() {
    run(|scheduler, door| async move {
        let group = |path: String| scheduler.group(&path).unwrap().create().unwrap();
        let groups: Vec<_> = (0..TASKS)
            .map(|each| group(format!("tenant/{each}")))
            .collect();
        let neighbour = group("neighbour".into());
        let tasks = crowd(&groups, &door);
        neighbour_runs(&scheduler, &neighbour).await;
        door.open();
        all_come(tasks).await;
    });
}

/// They wait for nobody's poll to end: an abort, a move, a freeze and a thaw reach them as they are.
#[test]
fn who_is_kept_back_can_be_aborted_moved_and_thawed() {
    run(|scheduler, door| async move {
        let group = |path: &str| scheduler.group(path).unwrap().create().unwrap();
        let (tenant, late) = (group("tenant"), group("tenant/late"));
        let neighbour = group("neighbour");
        let tasks = crowd(std::slice::from_ref(&tenant), &door);
        neighbour_runs(&scheduler, &neighbour).await;
        let aborted = tenant.spawn(async { 7 });
        let moved = late.spawn(async { 7 });
        neighbour_runs(&scheduler, &neighbour).await;
        tenant.freeze().unwrap();
        tenant.thaw().unwrap();
        neighbour_runs(&scheduler, &neighbour).await;
        assert!(!aborted.is_finished() && !moved.is_finished());
        aborted.abort();
        assert!(aborted.await.unwrap_err().is_cancelled());
        late.move_tasks_to(&neighbour).unwrap();
        assert_eq!(moved.await.unwrap(), 7);
        door.open();
        all_come(tasks).await;
    });
}

#[test]
fn a_killed_crowd_ends_but_for_those_that_block() {
    run(|scheduler, door| async move {
        let tenant = scheduler.group("tenant").unwrap().create().unwrap();
        let neighbour = scheduler.group("neighbour").unwrap().create().unwrap();
        let tasks = crowd(std::slice::from_ref(&tenant), &door);
        neighbour_runs(&scheduler, &neighbour).await;
        tenant.kill().unwrap();
        let ended = || tasks.iter().filter(|task| task.is_finished()).count();
        eventually("the end of those that wait", || {
            ended() >= TASKS - BORNE_MAX
        })
        .await;
        door.open();
        eventually("the end of all", || ended() == TASKS).await;
    });
}

/// As it ends nobody is kept back.
#[test]
fn a_scheduler_ends_with_tasks_that_are_kept_back() {
    run(|scheduler, door| async move {
        let tenant = scheduler.group("tenant").unwrap().create().unwrap();
        let neighbour = scheduler.group("neighbour").unwrap().create().unwrap();
        let tasks = crowd(&[tenant], &door);
        neighbour_runs(&scheduler, &neighbour).await;
        let opens = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            door.open();
        };
        tokio::join!(scheduler.shutdown(), opens);
        assert!(tasks.iter().all(|task| task.is_finished()));
    });
}
