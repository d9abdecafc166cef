//! The servers of the tests, which `scripts/postgres.sh` starts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use emitree_stores::{ConnectPostgres, PostgresStore};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

/// Calls the script, and returns its output.
fn script(folder: Option<&Path>, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/postgres.sh"));
    command.args(arguments);
    if let Some(folder) = folder {
        command.env("EMITREE_POSTGRES_FOLDER", folder);
    }
    let output = command.output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Returns an output of the script, or skips the test.
fn or_skip(output: Result<String, String>) -> Option<String> {
    match output {
        Ok(output) => Some(output),
        Err(error) if std::env::var_os("CI").is_some() => panic!("{error}"),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// Returns the URL of the server that all tests share, or `None` if none runs.
pub(crate) fn shared() -> Option<String> {
    static URL: OnceLock<Option<String>> = OnceLock::new();
    URL.get_or_init(|| or_skip(script(None, &["url"]))).clone()
}

/// Returns the URL of a pgbouncer before the shared server.
pub(crate) fn pool() -> Option<String> {
    or_skip(script(None, &["pool"]))
}

/// A server of one test, which may stop it.
pub(crate) struct Own {
    folder: TempDir,
    settings: Vec<String>,
    pub(crate) url: String,
}

impl Own {
    /// Starts a server with settings, if the shared server runs too.
    pub(crate) fn start(settings: &[&str]) -> Option<Self> {
        shared()?;
        let folder = tempfile::tempdir().expect("a folder");
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let mut own = Self { folder, settings, url: String::new() };
        own.url = own.restart();
        Some(own)
    }

    fn folder(&self) -> PathBuf {
        self.folder.path().join("server")
    }

    /// The certificate of the authority that has signed the server's.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder().join("root.crt")
    }

    /// Stops the server as a crash does.
    pub(crate) fn crash(&self) {
        script(Some(&self.folder()), &["crash"]).expect("stopped");
    }

    /// Starts the server again, and returns its URL, which is the same.
    pub(crate) fn restart(&self) -> String {
        // The user of the server has to get to its folder.
        let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        std::fs::set_permissions(self.folder.path(), open).expect("permissions");
        let settings = self.settings.iter().map(|setting| &**setting);
        script(Some(&self.folder()), &["start"].into_iter().chain(settings).collect::<Vec<_>>()).expect("started")
    }
}

impl Own {
    /// Stops the server, and starts it as a standby.
    pub(crate) fn become_standby(&self) {
        self.crash();
        std::fs::write(self.folder().join("data/standby.signal"), "").expect("written");
        self.restart();
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        _ = script(Some(&self.folder()), &["stop"]);
    }
}

/// Returns a name that no other test uses, also of another process.
pub(crate) fn new_name(prefix: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let random = emitree_emitter::new_id().as_u128() as u32;
    format!("{prefix}_{random:08x}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Connects to a schema that no other test uses.
pub(crate) fn connect(url: &str) -> ConnectPostgres {
    PostgresStore::connect(url).schema(new_name("test"))
}

/// Connects, also if a busy server needs longer than a short deadline.
pub(crate) async fn connected(connect: ConnectPostgres) -> PostgresStore {
    for _ in 0..20 {
        if let Ok(store) = connect.clone().await {
            return store;
        }
    }
    connect.await.expect("a store")
}

/// Returns a store in a schema that no other test uses.
pub(crate) async fn store(url: &str) -> PostgresStore {
    connect(url).await.expect("a store")
}

/// Connects without a store. The connection ends with the client.
pub(crate) async fn admin(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

/// Creates a database with options, and returns its URL.
pub(crate) async fn database(url: &str, options: &str) -> String {
    let name = new_name("database");
    admin(url).await.batch_execute(&format!("CREATE DATABASE {name} {options}")).await.expect("a database");
    with_database(url, &name)
}

pub(crate) fn with_database(url: &str, name: &str) -> String {
    let (server, _) = url.rsplit_once('/').expect("a database");
    format!("{server}/{name}")
}

/// Returns the name of the database of a URL.
pub(crate) fn database_of(url: &str) -> &str {
    url.rsplit_once('/').expect("a database").1
}

/// Returns a URL with another user.
pub(crate) fn with_user(url: &str, user: &str) -> String {
    url.replace("postgres@", &format!("{user}@"))
}

/// Returns the schema of a store.
pub(crate) fn schema_of(store: &PostgresStore) -> String {
    let shown = format!("{store:?}");
    let (_, schema) = shown.split_once("schema: \"").expect("a schema");
    schema.split('"').next().expect("a name").to_owned()
}
