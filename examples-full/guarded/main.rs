//! A desk that answers letters, guarded by five built-in middlewares.
//!
//! ```text
//! cargo run -p emitree-examples --example guarded
//! cargo run -p emitree-examples --example guarded -- your-letter.txt
//! ```
//!
//! By default it answers three letters, one of them twice. The trajectory shows the runs and the events of each middleware.
//! One line for each letter follows. A letter is a text with a head: `From`, and optionally `Orders` and `Reply-To`.

use std::path::PathBuf;

use emitree::middleware::Trajectory;
use emitree::{Result, Runnable};

use crate::desk::desk;

mod desk;
mod guards;
#[path = "../../examples/shared/help.rs"]
mod help;
mod letter;
mod tools;

#[tokio::main]
async fn main() -> Result<()> {
    if help::is_asked(include_str!("main.rs")) {
        return Ok(());
    }
    let letters = match std::env::args().skip(1).map(PathBuf::from).collect::<Vec<_>>() {
        none if none.is_empty() => sample(),
        some => some,
    };
    // Prints the events of the middlewares as well as the runs.
    let trajectory = Trajectory::builder().events("middleware.*.*").build()?;
    let answers = desk()?.run(letters).middleware(trajectory).await?;
    println!();
    answers.iter().for_each(|answer| println!("{answer}"));
    Ok(())
}

fn sample() -> Vec<PathBuf> {
    let folder = tools::folder().join("letters");
    ["anna.txt", "anna.txt", "mallory.txt", "carol.txt"].map(|name| folder.join(name)).into()
}
