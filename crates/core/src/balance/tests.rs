//! How loads are weighed.

use super::*;

/// Loads are even where each CPU has as much for what it can do.
#[test]
fn load_is_evened_out_by_what_is_left_of_each_cpu() {
    assert_eq!(excess_load((4_096, 1_024), (1_024, 1_024)), 3_072);
    assert_eq!(excess_load((1_024, 1_024), (4_096, 1_024)), 0);
    // All of it goes where somebody above has the other CPU.
    let all = excess_load((2_048, 1), (0, 1_024)) / 2;
    assert!((2_040..=2_048).contains(&all), "{all}");
    let all_but_one = excess_load((1_024, 1), (3_072, 1_024)) / 2;
    assert!((1_020..=1_024).contains(&all_but_one), "{all_but_one}");
    assert_eq!(excess_load((3_072, 1_024), (0, 1)) / 2, 2);
    // Half of a CPU bears half of the load.
    assert_eq!(excess_load((1_024, 512), (2_048, 1_024)), 0);
    assert_eq!(excess_load((1_536, 512), (1_536, 1_024)), 1_024);
    assert!(excess_load((u64::MAX >> 9, 1), (0, 1_024)) > 0);
}

#[test]
fn a_cpu_that_is_stolen_whole_is_left_with_a_little() {
    let load = CpuLoad::default();
    assert_eq!(load.capacity(), 1_024);
    for (stolen, left) in [(0, 1_024), (300, 724), (1_024, 1), (u32::MAX, 1)] {
        load.publish_stolen(stolen);
        assert_eq!(load.capacity(), left);
    }
}
