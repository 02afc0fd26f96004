//! What the search found, and what was at fault.

use crate::common::Work;
use crate::setup::{Setup, Top, worst};

const fn hog(chunk: u64) -> Work {
    Work::Hog { chunk }
}

const fn periodic(run: u64, sleep: u64) -> Work {
    Work::Periodic { run, sleep }
}

#[track_caller]
fn holds(least: f64, setup: &Setup) {
    let (ratio, who) = worst(setup, 10);
    assert!(ratio >= least, "{ratio:.3}: {who}");
}

/// Seed 2, set-up 937. Two sleepers owed more than their group gets come and go in turn. Measured against V, which each of
/// them moves by its debt, the debt of the other seemed to be paid: the third got nothing at all.
#[test]
fn groups_that_sleep_in_turn_do_not_shed_their_debts_on_one_cpu() {
    holds(
        0.97,
        &Setup::of(
            1,
            &[
                (
                    200,
                    &[
                        (700, 1, periodic(2_000_000, 5_000_000)),
                        (100, 2, hog(1_000_000)),
                        (2_000, 1, periodic(600_000, 5_000_000)),
                    ],
                ),
                (2_000, &[(100, 2, hog(50_000)), (100, 2, hog(250_000))]),
            ],
        ),
    );
}

/// Seed 2, set-up 995: the same with more of them, 0.004 of the share.
#[test]
fn a_light_spinner_among_many_sleepers_has_its_share_on_one_cpu() {
    holds(
        0.97,
        &Setup::of(
            1,
            &[
                (
                    200,
                    &[
                        (50, 2, periodic(50_000, 100_000)),
                        (2_000, 2, hog(50_000)),
                        (100, 2, periodic(600_000, 100_000)),
                    ],
                ),
                (
                    200,
                    &[
                        (700, 1, periodic(50_000, 500_000)),
                        (200, 2, periodic(2_000_000, 500_000)),
                    ],
                ),
                (
                    50,
                    &[
                        (200, 1, hog(250_000)),
                        (700, 1, periodic(200_000, 1_500_000)),
                        (50, 1, periodic(600_000, 1_500_000)),
                    ],
                ),
            ],
        ),
    );
}

/// Seed 1, set-up 296: 0.867. A sleeper's debt was taken for paid before its sibling had caught up.
#[test]
fn a_sleeper_of_long_polls_gets_no_more_than_its_sibling() {
    holds(
        0.97,
        &Setup::of(
            1,
            &[
                (2_000, &[(700, 2, periodic(50_000, 1_500_000))]),
                (
                    50,
                    &[
                        (100, 1, periodic(2_000_000, 1_500_000)),
                        (100, 2, hog(250_000)),
                    ],
                ),
            ],
        ),
    );
}

/// Seed 2, set-up 461. The host asked whom to pull from only where it had picked, not where it had switched: the spinners
/// were pulled to where their group had just had its turn, and it had the next one elsewhere. 0.003 of the share.
#[test]
fn a_group_that_is_owed_is_pulled_where_its_parent_is_chosen() {
    holds(
        0.95,
        &Setup::of(
            2,
            &[
                (700, &[(2_000, 4, hog(250_000))]),
                (
                    100,
                    &[
                        (2_000, 3, hog(50_000)),
                        (700, 2, periodic(2_000_000, 1_500_000)),
                    ],
                ),
                (700, &[(2_000, 2, hog(1_000_000))]),
            ],
        ),
    );
}

/// Seed 3, set-up 9677, made smaller: 0.000. The sleepers woke on a CPU that belongs to another group, and where their parent
/// ran one poll of 50 us was pulled for each note of what they were owed, one note every 250 us. The spinners had the rest, a third
/// of the parent each, and paid in turn with nothing for seconds once the rhythm changed.
#[test]
fn sleepers_that_are_owed_are_pulled_as_often_as_they_wake() {
    holds(
        0.97,
        &Setup::of(
            2,
            &[
                (100, &[(100, 1, hog(250_000))]),
                (50, &[(100, 2, hog(250_000))]),
                (
                    50,
                    &[
                        (100, 1, hog(250_000)),
                        (2_000, 4, periodic(50_000, 100_000)),
                        (100, 2, hog(250_000)),
                    ],
                ),
            ],
        ),
    );
}

/// Seed 5, set-up 269: 0.842. The sleepers wait for a choice, and a spinner with short polls makes twenty times as many as its sibling:
/// it gave way each time, where that one was far ahead of it inside their group.
#[test]
fn who_is_owed_inside_its_group_does_not_give_way() {
    let spinners = [(200, 1, hog(50_000)), (200, 1, hog(1_000_000))];
    holds(
        0.95,
        &Setup::of(
            3,
            &[
                (100, &spinners),
                (50, &[(100, 3, periodic(50_000, 500_000))]),
                (2_000, &[(100, 1, hog(1_000_000))]),
            ],
        ),
    );
}

/// Seed 5, set-up 408: 0.711. A group that waits while others poll was seen waiting only by who looked in between, and what it
/// was owed was cut as of no use to it.
#[test]
fn what_is_owed_for_short_waits_is_not_cut() {
    holds(
        0.95,
        &Setup::of(
            8,
            &[
                (
                    200,
                    &[
                        (100, 15, periodic(200_000, 100_000)),
                        (2_000, 5, periodic(600_000, 5_000_000)),
                    ],
                ),
                (
                    100,
                    &[
                        (100, 9, hog(1_000_000)),
                        (50, 1, hog(50_000)),
                        (50, 2, periodic(600_000, 100_000)),
                    ],
                ),
            ],
        ),
    );
}

/// Seed 5, set-up 112: 0.820. A group's turns went to the CPUs where children that had had theirs waited.
#[test]
fn turns_go_where_who_is_inside_is_owed() {
    holds(
        0.92,
        &Setup::of(
            4,
            &[
                (50, &[(100, 3, hog(50_000)), (50, 4, hog(1_000_000))]),
                (
                    100,
                    &[
                        (2_000, 6, periodic(50_000, 500_000)),
                        (100, 6, periodic(2_000_000, 5_000_000)),
                    ],
                ),
                (
                    50,
                    &[
                        (50, 4, hog(50_000)),
                        (700, 7, periodic(200_000, 5_000_000)),
                        (2_000, 1, hog(250_000)),
                    ],
                ),
            ],
        ),
    );
}

/// Seed 11, set-up 16665: 0.161. Something of a group that was owed more than it can take waited now and then, so that nothing of that was
/// cut, and all others owed for what nobody else could use.
#[test]
fn who_gets_what_others_cannot_use_does_not_owe_for_it() {
    holds(
        0.95,
        &Setup::of(
            2,
            &[
                (
                    50,
                    &[
                        (50, 4, hog(1_000_000)),
                        (700, 2, periodic(600_000, 500_000)),
                        (100, 1, hog(50_000)),
                    ],
                ),
                (
                    700,
                    &[
                        (200, 4, periodic(2_000_000, 5_000_000)),
                        (2_000, 1, hog(1_000_000)),
                    ],
                ),
            ],
        ),
    );
}

/// Found when tasks beside groups were searched (seed 1, set-up 241): 0.556. They were measured against what competed on their own CPU, and
/// begun level with the groups each time that those had slept, or that a task was moved.
#[test]
fn a_task_beside_sleepers_keeps_what_it_is_owed_while_they_sleep() {
    let sleepers = [(100, 3, periodic(200_000, 100_000))];
    let setup = Setup::of(2, &[(100, &sleepers)]);
    holds(0.97, &setup.with(Some(0), 1, hog(250_000)));
}

/// Seed 1, set-up 639, made smaller, likewise: 0.609, and 0.857 since. Not all there is: whole polls of 2 ms.
#[test]
fn a_task_beside_sleepers_of_long_polls_has_most_of_its_share() {
    let sleepers = [(100, 6, periodic(2_000_000, 5_000_000))];
    let setup = Setup::of(2, &[(200, &sleepers)]);
    holds(0.84, &setup.with(None, 1, hog(250_000)));
}

/// Seed 1, set-up 1340, made smaller: 0.667, and 0.727 since. The task waits beside another group's, while its sibling has a CPU; and where
/// it is pulled to, that sibling waits.
#[test]
fn a_task_beside_groups_has_some_of_what_its_sibling_is_ahead() {
    let tops: [Top; 2] = [
        (100, &[(100, 1, hog(250_000))]),
        (100, &[(100, 2, hog(250_000))]),
    ];
    holds(0.71, &Setup::of(3, &tops).with(Some(0), 1, hog(250_000)));
}

/// Seed 1, set-up 713, made smaller, between two states of what cured the first two: 0.013. The clock was told of the tasks when they had
/// run, and did not count those who waited.
#[test]
fn tasks_beside_groups_count_while_they_wait() {
    let setup = Setup::of(2, &[(100, &[(50, 3, hog(250_000))])]);
    let setup = setup.with(None, 4, hog(250_000));
    holds(0.95, &setup.with(Some(0), 2, hog(250_000)));
}

/// Seed 1, set-up 1893, made smaller, likewise: 0.000. Each move cut what the task was owed, and gave that to all others, who moved it again
/// 4,000 times a second.
#[test]
fn a_task_beside_groups_that_is_moved_keeps_what_it_is_owed() {
    let setup = Setup::of(3, &[(50, &[(100, 1, hog(250_000))])]);
    let setup = setup.with(None, 2, hog(1_000_000));
    holds(0.95, &setup.with(None, 1, hog(250_000)));
}

/// Seed 1, set-up 1893 again, made smaller: 0.045, and 0.710 since. The others pulled the task from each other more often than the group of
/// twenty times its weight has turns, and wherever it came it waited for the end of one; and each time that the group came back to where it
/// was, what the task was owed was cut to a sleeper's credit.
#[test]
fn a_task_beside_a_heavy_group_is_chosen_where_it_is_pulled_to() {
    let setup = Setup::of(3, &[(2_000, &[(100, 1, periodic(50_000, 5_000_000))])]);
    let setup = setup.with(None, 1, hog(50_000));
    holds(0.69, &setup.with(Some(0), 4, hog(50_000)));
}

/// Seed 1, set-up 455, made smaller: 0.697, and 0.935 since. One spinner that should have a whole CPU of seven, beside 34 sleepers of its group, of which a third
/// polls for 2 ms: wherever it waits, it waits for the end of such a poll.
#[test]
fn a_spinner_beside_many_sleepers_has_most_of_a_cpu() {
    let sleepers = [
        (50, 9, periodic(600_000, 500_000)),
        (100, 13, periodic(50_000, 1_500_000)),
        (200, 12, periodic(2_000_000, 5_000_000)),
    ];
    let setup = Setup::of(7, &[(100, &sleepers)]);
    let setup = setup.with(None, 4, periodic(2_000_000, 5_000_000));
    holds(0.92, &setup.with(Some(0), 1, hog(250_000)));
}

/// Seed 74, set-up 521, made smaller: 0.022. The task's CPU is another group's most of the time; as nothing of its own group was beside it
/// there, the clock forgot what it was owed, and went on by that each time the task left.
#[test]
fn a_task_is_owed_where_its_group_waits() {
    let tops: [Top; 3] = [
        (2_000, &[(50, 3, hog(250_000))]),
        (700, &[(100, 1, hog(250_000))]),
        (100, &[(100, 1, periodic(2_000_000, 1_500_000))]),
    ];
    holds(0.95, &Setup::of(3, &tops).with(Some(0), 1, hog(250_000)));
}

/// Seed 74, set-up 2328, made smaller: 0.000. A group that should have two CPUs had one: what was pulled to another for that was pulled back to
/// where the rest of it ran, before the poll there had ended that it waited for.
#[test]
fn what_a_group_waits_for_elsewhere_is_not_pulled_back() {
    let setup = Setup::of(3, &[(700, &[(100, 1, hog(250_000))])]);
    let setup = setup.with(None, 3, hog(1_000_000));
    holds(0.95, &setup.with(Some(0), 1, hog(250_000)));
}

/// Seed 2, set-up 1610, made smaller, likewise: 0.000. Choices among tasks beside groups have to ask who is owed elsewhere each time.
#[test]
fn tasks_beside_a_group_ask_who_is_owed() {
    let setup = Setup::of(4, &[(100, &[(100, 6, hog(250_000))])]);
    let setup = setup.with(None, 7, hog(50_000));
    holds(0.90, &setup.with(Some(0), 6, periodic(50_000, 100_000)));
}

/// Seed 2, set-up 460, made smaller: 0.049. A sleeper with credit moves V back while it is there; the task that slept came back with its debt
/// measured against that V, which put it before its sibling again, and the sibling got nothing.
#[test]
fn a_sleeper_with_credit_does_not_pay_for_a_task_that_owes() {
    let tops: [Top; 2] = [
        (
            100,
            &[
                (100, 1, periodic(50_000, 5_000_000)),
                (100, 1, hog(250_000)),
            ],
        ),
        (100, &[(100, 1, hog(50_000))]),
    ];
    let setup = Setup::of(1, &tops).with(None, 2, hog(250_000));
    holds(
        0.97,
        &setup.with(Some(0), 1, periodic(2_000_000, 5_000_000)),
    );
}

/// Seed 302, set-up 1555, made smaller: the lighter of two siblings had 7 times its part, and the other two thirds of its own. Wherever a task of
/// the root was wanted on another CPU, whatever had waited longest here went, mostly the heavier sibling, away from where its parent's next
/// turn was.
#[test]
fn who_wants_a_task_beside_groups_takes_none_out_of_them() {
    let tops: [Top; 2] = [
        (100, &[(100, 1, hog(250_000))]),
        (100, &[(100, 1, hog(1_000_000)), (2_000, 1, hog(1_000_000))]),
    ];
    holds(0.97, &Setup::of(2, &tops).with(None, 1, hog(250_000)));
}

/// Seed 302, set-up 980, made smaller: 0.559. The tasks of the root yield after each poll, and each time a CPU chose the group for the sleepers
/// that waited there, however much it owed, and pulled the spinner there for it, just to go on with the task that had yielded.
#[test]
fn a_yield_gives_no_turn_to_a_group_that_owes() {
    let tops: [Top; 1] = [(100, &[(700, 1, hog(250_000))])];
    let setup = Setup::of(4, &tops).with(Some(0), 2, periodic(2_000_000, 5_000_000));
    holds(0.86, &setup.with(None, 5, hog(250_000)));
}

/// Seed 2, set-up 1660, made smaller: 0.637. The task should have a whole CPU. Each CPU that ran a sleeper of the child that is far ahead took it
/// every half millisecond, to wait for the end of another poll of 2 ms. One set-up says little: with polls and sleeps that differ by a few hundredths it
/// has between 0.887 and 0.922, whatever is changed (by 250 and 500 us 0.9098; 0.912 until 28 November). Their mean is 0.904 (0.908).
#[test]
fn a_task_beside_a_group_that_is_ahead_is_not_handed_round() {
    let polls = [
        200_000, 230_000, 240_000, 250_000, 260_000, 270_000, 300_000,
    ];
    let ratios = polls.into_iter().flat_map(|poll| {
        [490_000, 500_000, 510_000].map(|sleep| {
            let sleepers = [(100, 1, hog(250_000)), (50, 9, periodic(2_000_000, sleep))];
            let tops: [Top; 2] = [
                (100, &[(100, 7, periodic(50_000, 500_000))]),
                (2_000, &sleepers),
            ];
            worst(&Setup::of(5, &tops).with(Some(1), 1, hog(poll)), 10).0
        })
    });
    let ratios: Vec<f64> = ratios.collect();
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    assert!(mean >= 0.903, "{mean:.3}: {ratios:.3?}");
    assert!(ratios.iter().all(|&ratio| ratio >= 0.885), "{ratios:.3?}");
}

/// Seed 11, set-up 2868, made smaller: 0.002, and less with time. Three CPUs, each of which runs a task of the root, noted those as their polls
/// ended, and chose them at once. The CPU that was to take the least child came for one of these, in vain, each time.
#[test]
fn a_note_that_is_true_no_more_hides_nobody_below() {
    let children = [
        (200, 1, hog(1_000_000)),
        (100, 5, periodic(200_000, 500_000)),
        (100, 1, hog(250_000)),
    ];
    let tops: [Top; 2] = [(100, &[(100, 5, hog(1_000_000))]), (100, &children)];
    holds(0.97, &Setup::of(5, &tops).with(None, 3, hog(250_000)));
}
