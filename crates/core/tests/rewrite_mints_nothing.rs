//! Writing the limit that is in force already: nothing happens by the default rules, while every write mints a quota by
//! the kernel's (measured on 6.18: 620 ms instead of 105 in 2 s).

mod common;

use common::{MILLI, Machine, SECOND, Work, usage};
use quotient_core::{BandwidthRules, Config, Limit, Nanos};

fn used_with_rewrites(rules: BandwidthRules, rewrites: bool) -> u64 {
    let mut machine = Machine::new(Config {
        bandwidth: rules,
        ..Config::new(2)
    });
    let group = machine.group("g", 100);
    let limit = Limit::new(Nanos::from_millis(5), Nanos::from_millis(100));
    machine.limit(&group, Some(limit));
    machine.spawn(0, &group, Work::Hog { chunk: 50_000 });
    for step in 1..=200u64 {
        machine.run_until(step * 10 * MILLI);
        if rewrites {
            machine.limit(&group, Some(limit));
        }
    }
    assert_eq!(machine.now, 2 * SECOND);
    usage(&group)
}

#[test]
fn an_identical_rewrite_changes_nothing() {
    let plain = used_with_rewrites(BandwidthRules::Default, false);
    assert!((100 * MILLI..=101 * MILLI).contains(&plain), "{plain}");
    assert_eq!(used_with_rewrites(BandwidthRules::Default, true), plain);
}

#[test]
fn by_the_kernels_rules_rewrites_mint_budget() {
    let plain = used_with_rewrites(BandwidthRules::KERNEL, false);
    let minted = used_with_rewrites(BandwidthRules::KERNEL, true);
    assert!(plain <= 110 * MILLI, "{plain}");
    assert!(minted >= 5 * plain, "{minted} against {plain}");
}
