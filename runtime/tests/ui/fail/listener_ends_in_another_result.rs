//! A listener cannot return a `Result` of the runtime: it has to end with `Ok(f()?)`.
use emitree_emitter::Emitter;
use emitree_runtime::{Error, Result};

fn check(n: u32) -> Result<()> {
    if n == 0 { Err(Error::new("nothing to count")) } else { Ok(()) }
}

fn main() {
    Emitter::new().on("count", |n: &mut u32, _| check(*n)).unwrap();
}
