//! `Error` converts from any `std::error::Error`, as anyhow's does, so it does not implement that trait itself (R10).
use emitree_runtime::Error;

fn main() {
    let error: Box<dyn std::error::Error> = Box::new(Error::new("broken"));
    drop(error);
}
