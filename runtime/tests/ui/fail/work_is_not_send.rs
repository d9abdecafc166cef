//! The work of a runnable must be `Send`.
use std::rc::Rc;

use emitree_emitter::Emitter;
use emitree_runtime::{Result, RunContext, Runnable};

struct Local(Emitter);

impl Runnable for Local {
    type Input = u32;
    type Output = u32;

    fn emitter(&self) -> &Emitter {
        &self.0
    }

    async fn execute(&self, n: &u32, _: &RunContext) -> Result<u32> {
        let kept = Rc::new(*n);
        std::future::ready(()).await;
        Ok(*kept)
    }
}

fn main() {}
