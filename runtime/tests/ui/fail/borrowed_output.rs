use emitree_runtime::{Result, RunContext, Runnable, runnable_fn};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let greet = runnable_fn("greet", |(): (), _: RunContext| async { Ok("hello") });
    greet.run(()).await?;
    Ok(())
}
