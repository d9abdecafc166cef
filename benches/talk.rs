//! The cost of a long talk with all middlewares for long conversations.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --bench talk
//! ```

use std::hint::black_box;
use std::time::Instant;

use crate::support::{Case, Suite};
use crate::talk::Talk;

mod support;
#[path = "../examples/shared/talk.rs"]
mod talk;

fn main() {
    let mut suite = Suite::new(&["emitree"]);
    let (early, late) = (suite.case(turns_after(100)), suite.case(turns_after(400)));
    let row = suite.row("TK", "the turns 400 to 500 of a talk with all middlewares", late);
    row.at_most(1.3, "the turns 100 to 200", early);
    suite.run();
}

/// A hundred turns of a talk that has had this many.
fn turns_after(turns: u32) -> impl Case {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let mut talk = Talk::new().expect("an agent");
    for _ in 0..turns {
        runtime.block_on(talk.turn()).expect("an answer");
    }
    move |n| {
        let mut took = std::time::Duration::ZERO;
        for _ in 0..n.min(4) {
            let mut talk = talk.resumed().expect("a session");
            let begin = Instant::now();
            for _ in 0..100 {
                black_box(runtime.block_on(talk.turn()).expect("an answer"));
            }
            took += begin.elapsed();
        }
        // The harness asks for many operations before it knows how long one takes.
        took * u32::try_from(n / n.min(4)).unwrap_or(u32::MAX)
    }
}
