//! Middlewares: closures, functions, structs, shared middlewares.
use std::sync::Arc;

use emitree_emitter::AnyEvent;
use emitree_runtime::{Error, Middleware, Result, RunContext, Runnable, Stage, runnable_fn};

#[derive(Debug)]
struct Deny {
    user: &'static str,
}

impl Middleware for Deny {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if ctx.get("user").is_some_and(|user| user == self.user) {
            return Err(Error::denied(self.name(), "not this one"));
        }
        ctx.emitter().on(Stage::Start, |_: &mut dyn AnyEvent, _| ())?;
        Ok(())
    }

    fn name(&self) -> &str {
        "deny"
    }
}

fn log(ctx: &RunContext) -> Result<()> {
    ctx.emitter().observe("*.*", |_: &dyn AnyEvent, meta| println!("{}", meta.path()))?;
    Ok(())
}

async fn used() -> Result<()> {
    let tag = "acme".to_owned();
    let shared: Arc<dyn Middleware> = Arc::new(Deny { user: "mallory" });
    let talk = runnable_fn("talk", async |n: u32, _: RunContext| Ok(n))
        .middleware(log)
        .middleware(Deny { user: "eve" })
        .middleware(Arc::clone(&shared));
    let run = talk
        .run(1)
        .middleware(|ctx: &RunContext| {
            ctx.set("set", 1)?;
            Ok(())
        })
        .middleware(move |ctx: &RunContext| Ok(ctx.set("tag", tag.clone())?))
        .middleware(shared)
        .context(serde_json::json!({"user": "alice"}));
    run.await?;
    Ok(())
}

pub(crate) fn main() {
    drop(used());
}
