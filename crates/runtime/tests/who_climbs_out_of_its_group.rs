//! A tenant's own code has a handle of its group by `Group::current()`. That leads no further up.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quotient::{Error, Group, Leftover, Preempt, Scheduler};
use tokio::task::yield_now;

use common::eventually;

/// With and without preemption, each with a tenant whose limit is its parent's.
fn with_tenant<F: Future<Output = ()>>(body: impl Fn(Scheduler, Group) -> F) {
    let preempts = if cfg!(target_os = "linux") { 2 } else { 1 };
    for preempts in [false, true].into_iter().take(preempts) {
        common::runtime(2).block_on(async {
            let mut builder = Scheduler::builder().vcpus(2);
            if preempts {
                builder = builder.preempt(Preempt::default());
            }
            let scheduler = builder.build().unwrap();
            let above = scheduler.group("above").unwrap().max("50ms/100ms");
            let _above = above.create().unwrap();
            let tenant = scheduler.group("above/tenant").unwrap().create().unwrap();
            let body = body(scheduler.clone(), tenant);
            tokio::time::timeout(Duration::from_secs(60), body)
                .await
                .expect("hangs");
            scheduler.shutdown().await;
        });
    }
}

/// Hazard: its tasks moved to the parent, found that by `Group::current()`, lifted its limit, and went on to the root: 2 CPUs under a limit of 0.1, and the
/// limits of all others were theirs to set.
#[test]
fn a_tenant_moves_itself_to_the_group_above() {
    with_tenant(|_scheduler, tenant| async move {
        let inside = tenant.spawn(async {
            let own = Group::current().unwrap();
            let refused = own.remove(Leftover::MoveToParent);
            yield_now().await;
            let here = Group::current().unwrap().path().to_owned();
            // Within its own it does as it likes.
            let child = own.child("child").create().unwrap();
            let (has_asked, asked) = tokio::sync::oneshot::channel();
            let task = child.spawn(async {
                let own = Group::current().unwrap();
                let refused = own.remove(Leftover::MoveToParent).unwrap_err();
                has_asked.send(()).unwrap();
                while Group::current().unwrap() == own {
                    yield_now().await;
                }
                (refused, Group::current().unwrap().path().to_owned())
            });
            asked.await.unwrap();
            let again = own.child("child").create().unwrap();
            again.remove(Leftover::MoveToParent).unwrap();
            (refused, here, task.await.unwrap())
        });
        let (refused, here, (refused_below, below)) = inside.await.unwrap();
        let from_inside = |path: &str| Error::FromInside { path: path.into() };
        assert_eq!(refused, Err(from_inside("above/tenant")));
        assert_eq!(here, "above/tenant");
        assert_eq!(refused_below, from_inside("above/tenant/child"));
        assert_eq!(below, "above/tenant");
        // Who has it from outside may.
        let task = tenant.spawn(async {
            while Group::current().unwrap().path() != "above" {
                yield_now().await;
            }
        });
        tenant.remove(Leftover::MoveToParent).unwrap();
        task.await.unwrap();
    });
}

struct Looks(Arc<Mutex<Option<Option<String>>>>);

impl Drop for Looks {
    fn drop(&mut self) {
        let seen = Group::current().map(|group| group.path().to_owned());
        *self.0.lock().unwrap() = Some(seen);
    }
}

/// Hazard: what a group has kept is dropped after its end, the group above pays, and was what the destructor found.
#[test]
fn what_a_tenant_leaves_is_dropped_in_the_group_above() {
    with_tenant(|scheduler, tenant| async move {
        let seen = Arc::new(Mutex::new(None));
        let looks = Looks(seen.clone());
        let task = tenant.spawn(async move {
            let own = Group::current().unwrap();
            own.keep(looks);
            own.remove(Leftover::Kill).unwrap();
        });
        let _ = task.await;
        drop(tenant);
        // A virtual CPU forgets the group with the next that it polls.
        eventually("it is dropped", || {
            drop(scheduler.root().spawn(async {}));
            seen.lock().unwrap().is_some()
        })
        .await;
        assert_eq!(seen.lock().unwrap().take(), Some(None));
    });
}
