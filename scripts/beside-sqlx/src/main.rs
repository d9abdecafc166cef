//! Opens a file with `SqliteStore`, and another with sqlx.

use emitree::stores::SqliteStore;
use sqlx::{Connection, SqliteConnection};

async fn open() -> Result<(), Box<dyn std::error::Error>> {
    SqliteStore::open("runs.db").await?;
    SqliteConnection::connect("sqlite:program.db").await?;
    Ok(())
}

fn main() {
    // It only has to compile.
    drop(open());
}
