//! A short soak: every run that starts ends as it should, and the checker finds each kind of damage to a recording.

use crate::check::Rule;
use crate::damage::Damage;
use crate::memory::resident;
use crate::soak::{Settings, soak};

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
