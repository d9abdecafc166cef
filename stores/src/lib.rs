//! Databases for sessions, jobs and values that survive a kill, and tests for databases of your own.
//!
//! ```
//! # #[cfg(not(feature = "sqlite"))]
//! # fn main() {}
//! # #[cfg(feature = "sqlite")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> emitree_runtime::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("agents.db");
//! use emitree_middleware::store::{Append, EntryHead, Filter, Store};
//! use emitree_stores::SqliteStore;
//!
//! let store = SqliteStore::open(&path).await?;
//! let mut head = EntryHead::new("order-17", "session");
//! head.revision = store.append(&Append::new(head.clone()).part("the first message")).await?;
//!
//! // The process may be killed here: another process finds the entry.
//! let found = SqliteStore::open(&path).await?.list(&Filter::unfinished().limit(50)).await?;
//! assert_eq!(found, [head]);
//! # Ok(())
//! # }
//! ```
//!
//! # Concepts
//!
//! - An **entry** is a session or a job: a head that is listed, and parts. [`Store`](emitree_middleware::store::Store)
//!   is the trait.
//! - Each change is made for the **revision** that its author has read. Of two authors one gets a conflict.
//! - A change whose outcome is unknown, because its future was dropped or a reply was lost, is **repeated** with its
//!   id: it is made at most once.
//! - [`conformance()`] tests a store of your own.
//!
//! | feature | store | |
//! |---|---|---|
//! | `sqlite` | [`SqliteStore`] | a file, also for several processes; also a [`KeyValues`](emitree_middleware::values::KeyValues) |
//! | `postgres` | [`PostgresStore`] | a PostgreSQL server, for processes on several machines; also a `KeyValues` |
//!
//! `sqlite` accepts each rusqlite from 0.39 to 0.43: a program can have only one SQLite, and sqlx 0.9 needs that of
//! rusqlite 0.39.

#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::missing_errors_doc,
        clippy::missing_panics_doc
    )
)]
#![cfg_attr(
    not(all(feature = "postgres", feature = "sqlite")),
    allow(rustdoc::broken_intra_doc_links, reason = "this page names the stores of all features")
)]

mod conformance;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod shared;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use conformance::conformance;
#[cfg(feature = "postgres")]
pub use postgres::{ConnectPostgres, PostgresStore};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
