//! A short soak: every run that starts ends as it should, and the checker finds each kind of damage to a recording.

#[path = "../examples/soak/bad.rs"]
mod bad;
#[path = "../examples/soak/bind.rs"]
mod bind;
#[path = "../examples/soak/check.rs"]
mod check;
#[path = "../examples/soak/damage.rs"]
mod damage;
#[path = "../examples/soak/ending.rs"]
mod ending;
#[path = "../examples/soak/hold.rs"]
mod hold;
#[path = "../examples/soak/listed.rs"]
mod listed;
#[path = "../examples/soak/listen.rs"]
mod listen;
#[path = "../examples/soak/memory.rs"]
mod memory;
#[path = "../examples/soak/plan.rs"]
mod plan;
#[path = "../examples/soak/record.rs"]
mod record;
#[path = "../examples/soak/soak.rs"]
mod soak;
#[path = "../examples/soak/tally.rs"]
mod tally;
#[path = "../examples/soak/threads.rs"]
mod threads;
#[path = "../examples/soak/tree.rs"]
mod tree;

use check::Rule;
use damage::Damage;
use memory::resident;
use soak::{Settings, soak};

// This is a single test, because each soak waits for the ends of all runs of the process.
#[test]
fn every_run_that_starts_ends_and_the_checker_finds_each_kind_of_damage() {
    let report = soak(&Settings { seed: fastrand::u64(..), runs: 20_000, damage: None }, |_| ());
    assert!(report.is_fine(), "{report}");
    assert!(report.tally.runs >= 20_000 && report.cuts > 0, "{report}");
    assert_eq!(report.tally.below(1), Vec::<String>::new(), "{report}");

    // Not every system reports the resident set.
    for rule in Rule::ALL.iter().copied().filter(|rule| *rule != Rule::Memory || resident().is_some()) {
        assert_ne!(Damage::of(rule).count(), 0, "nothing breaks a rule: {rule}");
        Damage::of(rule).for_each(|damage| expect_broken(rule, damage));
    }
}

fn expect_broken(rule: Rule, damage: Damage) {
    // Growth is measured from the warm-up to the end, so the soak must be longer than one batch.
    let runs = if rule == Rule::Memory { 5_000 } else { 500 };
    let report = soak(&Settings { seed: 1, runs, damage: Some(damage) }, |_| ());
    assert!(report.broken.contains_key(&rule), "{damage}: {report}");
}
