//! The soak of the examples, in short: every run that starts ends as it should, and the checker finds each damage that is
//! done to a recording.

#[path = "../examples/soak/check.rs"]
mod check;
#[path = "../examples/soak/damage.rs"]
mod damage;
#[path = "../examples/soak/hold.rs"]
mod hold;
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

use damage::Damage;
use soak::{Settings, soak};

// One test: ends that are still to come are waited for in the whole process.
#[test]
fn every_run_that_starts_ends_and_each_damage_is_found() {
    let report = soak(&Settings { seed: fastrand::u64(..), runs: 20_000, damage: None }, |_| ());
    assert!(report.is_fine(), "{report}");
    assert!(report.tally.runs >= 20_000 && report.cuts > 0, "{report}");
    assert_eq!(report.tally.below(1), Vec::<String>::new(), "{report}");

    for damage in Damage::ALL {
        let report = soak(&Settings { seed: 1, runs: 500, damage: Some(damage) }, |_| ());
        assert!(report.broken.contains_key(&damage.breaks()), "{}: {report}", damage.as_str());
    }
}
