//! The server of a test, which `scripts/postgres.sh` starts.

use std::error::Error;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use emitree_stores::PostgresStore;
use tokio_postgres::NoTls;

use crate::flaws::Flaw;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/postgres.sh");

/// A server. It is stopped when it is dropped.
pub(crate) struct Server {
    folder: PathBuf,
    pub(crate) url: String,
}

impl Server {
    /// Starts a server in a folder.
    pub(crate) fn start(folder: &Path) -> io::Result<Self> {
        // The user of the server has to get to its data.
        fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
        let mut server = Self { folder: folder.join("server"), url: String::new() };
        server.url = server.go_on()?;
        Ok(server)
    }

    fn script(&self, arguments: &[&str]) -> io::Result<String> {
        let output = Command::new(SCRIPT).args(arguments).env("EMITREE_POSTGRES_FOLDER", &self.folder).output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(io::Error::other(format!("scripts/postgres.sh {arguments:?} has failed: {text}")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn go_on(&self) -> io::Result<String> {
        // The store has to wait for the disk itself.
        self.script(&["start", "synchronous_commit=off", "wal_writer_delay=10s"])
    }

    /// Stops the server as a crash does, and starts it again.
    pub(crate) fn crash(&self) -> io::Result<()> {
        self.script(&["crash"])?;
        self.go_on().map(drop)
    }

    /// Creates the tables and functions of the store, which may have a flaw.
    pub(crate) async fn create_tables(&self, flaw: Option<&Flaw>) -> Result<(), Box<dyn Error>> {
        let sql = PostgresStore::schema("emitree", "postgres")?;
        let sql = flaw.map_or_else(|| Ok(sql.clone()), |flaw| flaw.put_into(&sql))?;
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        let connection = tokio::spawn(connection);
        client.batch_execute(&sql).await?;
        drop(client);
        Ok(connection.await??)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.script(&["stop"]) {
            eprintln!("{error}");
        }
    }
}
