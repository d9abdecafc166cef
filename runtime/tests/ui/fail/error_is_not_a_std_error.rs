//! The error is made of any other, as anyhow's is, and so is not one itself (R10).
use emitree_runtime::Error;

fn main() {
    let error: Box<dyn std::error::Error> = Box::new(Error::new("broken"));
    drop(error);
}
