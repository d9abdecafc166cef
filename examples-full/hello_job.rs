//! The third program of the README: a job that survives a kill.

use std::time::Duration;

use emitree::middleware::Durable;
use emitree::middleware::store::Lease;
use emitree::prelude::*;
use emitree::stores::SqliteStore;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let import = runnable_fn("import", |rows: Vec<String>, _: RunContext| async move {
        let write = runnable_fn("write", |row: String, ctx: RunContext| async move {
            println!("{}: {row}", ctx.key().expect("a step has a key")); // a database inserts a key once
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(())
        });
        for (n, row) in rows.iter().enumerate() {
            write.run(row.clone()).key(format!("row {n}")).idempotent().await?; // a step, which is stored
        }
        Ok(rows.len())
    });
    let store = SqliteStore::open("jobs.db").await?;
    let job = Durable::new(&store, "import-7").lease(Lease::new().time(Duration::from_secs(1)));
    let rows = ["Ada", "Bob", "Eve"].map(str::to_owned).to_vec();
    println!("{} rows are imported", import.run(rows).middleware(job).await?);
    Ok(())
}
