//! The first program of the README: runs in a run, an event, and a listener that changes an input.

use std::sync::Arc;

use emitree::prelude::*;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let compile = Arc::new(runnable_fn("compile", |file: String, ctx: RunContext| async move {
        ctx.emitter().emit("progress", &mut 50).await?; // an event of your own
        tokio::task::yield_now().await;
        Ok(file.replace(".rs", ".o"))
    }));
    let build = runnable_fn("build", move |name: String, _: RunContext| {
        let compile = Arc::clone(&compile);
        async move {
            let (main, lib) = (compile.run(format!("{name}/main.rs")), compile.run(format!("{name}/lib.rs")));
            let (main, lib) = tokio::try_join!(main, lib)?; // two runs below this one, at the same time
            Ok([main, lib])
        }
    });
    build
        .run("Demo".to_owned())
        .on_start(|start, _| start.input.make_ascii_lowercase()) // a listener may change the input
        .observe("**.progress", |percent: &i32, _| println!("{percent} %")) // events rise from the runs below
        .middleware(Trajectory::stdout()) // prints this run and the runs below
        .await?;
    Ok(())
}
