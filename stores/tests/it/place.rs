//! The place of a store that several processes open: a file, or a schema of a server.

use std::path::Path;
use std::sync::Arc;

use emitree_middleware::store::Store;
use emitree_stores::{PostgresStore, SqliteStore};

use super::postgres::server::{new_name, shared};

/// A path, or a URL and a schema.
#[derive(Clone, Debug)]
pub(crate) struct Place(String);

impl Place {
    /// Returns a file in a folder.
    pub(crate) fn file(folder: &Path) -> Self {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let name = format!("{}.db", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        Self(folder.join(name).to_str().expect("a text").to_owned())
    }

    /// Returns a schema that no other test uses, or `None` if no server runs.
    pub(crate) fn server() -> Option<Self> {
        shared().map(|url| Self(format!("{url} {}", new_name("place"))))
    }

    /// Returns the place that another process has given to this one in a variable.
    pub(crate) fn of_process(variable: &str) -> Option<Self> {
        std::env::var(variable).ok().map(Self)
    }

    /// Returns the value of the variable.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        match self.0.split_once(' ') {
            Some((url, schema)) if url.starts_with("postgres:") => {
                Arc::new(PostgresStore::connect(url).schema(schema).await.expect("a store"))
            }
            _ => Arc::new(SqliteStore::open(&self.0).await.expect("a store")),
        }
    }
}
