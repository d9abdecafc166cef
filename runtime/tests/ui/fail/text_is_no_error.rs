//! Text is converted to an error with `Error::new` (R10).
use emitree_runtime::Result;

fn check(n: u32) -> Result<()> {
    if n == 0 { Err("nothing to count".into()) } else { Ok(()) }
}

fn main() {
    drop(check(0));
}
