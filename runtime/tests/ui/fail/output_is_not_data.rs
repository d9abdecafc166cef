//! Input and output must be serializable and deserializable.
use emitree_emitter::Emitter;
use emitree_runtime::{Result, RunContext, Runnable};

struct Connection;

struct Connect(Emitter);

impl Runnable for Connect {
    type Input = u32;
    type Output = Connection;

    fn emitter(&self) -> &Emitter {
        &self.0
    }

    async fn execute(&self, _: &u32, _: &RunContext) -> Result<Connection> {
        Ok(Connection)
    }
}

fn main() {}
