//! The cost of changes and lists of a store in a SQLite file.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --features sqlite --bench store
//! ```

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use emitree::agent::{AgentRun, Session};
use emitree::middleware::Durable;
use emitree::middleware::store::{Append, EntryHead, EntryStatus, Filter, Revision, Store};
use emitree::stores::SqliteStore;
use emitree::{RunContext, Runnable, runnable_fn};
use futures_util::future::join_all;
use rusqlite::{Connection, TransactionBehavior};
use tokio::runtime::Runtime;

use crate::support::{Case, Extra, Suite};
use crate::talks::{caller, talks};

mod support;
#[path = "support/talks.rs"]
mod talks;

/// The bytes that each change writes into a part.
const PART: [u8; 400] = [b'x'; 400];
const TOGETHER: u32 = 50;
/// The steps of a job for each iteration.
const STEPS: u64 = 20;
/// The time of the disk depends on other programs, and is left out where two sizes of a store are compared.
const WITHOUT_DISK: &str = "PRAGMA synchronous = OFF";

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut suite = Suite::new(&["emitree", "rusqlite"]);
    let bare = suite.case(transactions(&folder.path().join("bare.db")));
    let stored = Stored::new(&folder.path().join("stored.db"), 1_000, "");
    let few = Stored::new(&folder.path().join("few.db"), 1_000, WITHOUT_DISK);
    let many = Stored::new(&folder.path().join("many.db"), 100_000, WITHOUT_DISK);

    let append = suite.case(stored.appends(1));
    let row = suite.row("SA", "an append of 400 bytes that waits for the disk", append);
    row.beside("rusqlite", bare).at_most(2.0, "a transaction", bare);
    let together = Extra::from(suite.case(stored.appends(TOGETHER)));
    let row = suite.row("SG", "50 appends to 50 entries at a time, all of them", together);
    row.beside("rusqlite", bare).at_most(5.0, "a transaction", bare);
    let jobs = Stored::new(&folder.path().join("jobs.db"), 0, "");
    let steps = suite.case(jobs.steps());
    let row = suite.row("SD", "a step of a job, with its beginning and its end", steps);
    row.beside("rusqlite", bare).at_most(3.0, "a transaction", bare);
    let turn = Extra::shared(suite.case(stored.turns(1, 11)), suite.case(stored.turns(1, 1)), 10);
    let row = suite.row("ST", "a turn of an agent with one call", turn);
    row.beside("rusqlite", bare).at_most(5.0, "a transaction", bare);
    let turn_of_ten = Extra::shared(suite.case(stored.turns(10, 11)), suite.case(stored.turns(10, 1)), 10);
    suite.row("SN", "a turn of an agent with ten calls", turn_of_ten).at_most(3.0, "with one call", turn);
    let (open, parsed) = few.opened_and_parsed();
    let (open, parsed) = (suite.case(open), suite.case(parsed));
    suite.row("SO", "opening a session of 1,000 turns", open).at_most(3.0, "parsing its JSON", parsed);
    let (claim, among_few) = (suite.case(many.claims()), suite.case(few.claims()));
    suite.row("SC", "a claim without the disk, among 100,000 waiting entries", claim).at_most(
        2.0,
        "among 1,000",
        among_few,
    );
    let (page, among_few) = (suite.case(many.pages()), suite.case(few.pages()));
    suite.row("SL", "the first 50 of 100,000 waiting entries", page).at_most(2.0, "of 1,000", among_few);
    suite.run();
}

/// A store with entries that wait.
struct Stored {
    runtime: Arc<Runtime>,
    store: SqliteStore,
}

impl Stored {
    fn new(path: &Path, entries: usize, sql: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let store = runtime.block_on(async {
            let store = SqliteStore::open_with(path, sql).await.expect("a store");
            let appends: Vec<_> = (0..entries).map(|n| Append::new(waiting(n)).part(&PART[..])).collect();
            for appends in appends.chunks(1_000) {
                let stored = join_all(appends.iter().map(|append| store.append(append))).await;
                assert!(stored.iter().all(Result::is_ok));
            }
            store
        });
        Self { runtime: Arc::new(runtime), store }
    }

    fn revision(&self, id: &str) -> Revision {
        let entry = self.runtime.block_on(self.store.load(id)).expect("loaded");
        entry.expect("an entry").head.revision
    }

    /// Changes entries at a time, over and over. Each change replaces the parts, so that the file does not grow.
    fn changes(&self, count: u32, part: Option<&'static [u8]>) -> impl Case + use<> {
        let (runtime, store) = (Arc::clone(&self.runtime), self.store.clone());
        let mut heads: Vec<_> = (0..count as usize).map(waiting).collect();
        let first: Vec<_> = heads.iter().map(|head| self.revision(&head.id)).collect();
        let mut current = first;
        move |n| {
            // Another case may have changed the same entries.
            for (head, revision) in heads.iter().zip(&mut current) {
                *revision = runtime.block_on(store.load(&head.id)).expect("loaded").expect("an entry").head.revision;
            }
            let begin = Instant::now();
            for _ in 0..n {
                let appends = heads.iter_mut().zip(&current).map(|(head, revision)| {
                    head.revision = *revision;
                    let append = Append::new(head.clone());
                    part.map_or(append.clone(), |part| append.part(part).replacing())
                });
                let appends: Vec<_> = appends.collect();
                let stored = runtime.block_on(join_all(appends.iter().map(|append| store.append(append))));
                current = stored.into_iter().map(|revision| revision.expect("stored")).collect();
            }
            begin.elapsed()
        }
    }

    fn appends(&self, count: u32) -> impl Case + use<> {
        self.changes(count, Some(&PART))
    }

    /// Steps of one job, one after another. The beginning and the end of the job are shared by many steps.
    fn steps(&self) -> impl Case + use<> {
        let (runtime, store) = (Arc::clone(&self.runtime), self.store.clone());
        let step = Arc::new(runnable_fn("step", |n: u64, _: RunContext| async move { Ok(n) }));
        let job = runnable_fn("job", move |steps: u64, _: RunContext| {
            let step = Arc::clone(&step);
            async move {
                for n in 0..steps {
                    step.run(n).key(n.to_string()).await?;
                }
                Ok(steps)
            }
        });
        let mut jobs = 0;
        move |n| {
            jobs += 1;
            let durable = Durable::new(&store, format!("job-{jobs}"));
            let begin = Instant::now();
            let ended = runtime.block_on(async { job.run(n * STEPS).middleware(durable).await });
            assert!(ended.is_ok());
            begin.elapsed() / STEPS as u32
        }
    }

    /// Runs with some turns, each with some calls at a time.
    fn turns(&self, calls: usize, turns: u32) -> impl Case + use<> {
        talks(&self.runtime, &self.store, calls, turns)
    }

    /// Opens a session of 1,000 turns, and parses its JSON.
    fn opened_and_parsed(&self) -> (impl Case + use<>, impl Case + use<>) {
        let (runtime, store) = (Arc::clone(&self.runtime), self.store.clone());
        let json = runtime.block_on(async {
            let session = Session::open(&store, "long").await.expect("a session");
            caller(1, 1_000).ask("Go.").session(&session).await.expect("an answer");
            serde_json::to_string(&session).expect("JSON")
        });
        let opened = move |n| {
            let begin = Instant::now();
            for _ in 0..n {
                black_box(runtime.block_on(async { Session::open(&store, "long").await }).expect("a session"));
            }
            begin.elapsed()
        };
        let parsed = move |n| {
            let begin = Instant::now();
            for _ in 0..n {
                black_box(serde_json::from_str::<Session>(black_box(&json)).expect("a session"));
            }
            begin.elapsed()
        };
        (opened, parsed)
    }

    /// A claim changes the head alone.
    fn claims(&self) -> impl Case + use<> {
        self.changes(1, None)
    }

    fn pages(&self) -> impl Case + use<> {
        let (runtime, store) = (Arc::clone(&self.runtime), self.store.clone());
        let filter = Filter::waiting().limit(50);
        move |n| {
            let begin = Instant::now();
            for _ in 0..n {
                let heads = runtime.block_on(store.list(black_box(&filter))).expect("a list");
                assert_eq!(heads.len(), 50);
            }
            begin.elapsed()
        }
    }
}

fn waiting(n: usize) -> EntryHead {
    let mut head = EntryHead::new(format!("order-{n:06}"), "session");
    head.status = EntryStatus::Waiting;
    head
}

/// Transactions that write one row, as a program writes them with rusqlite.
fn transactions(path: &Path) -> impl Case + use<> {
    let mut connection = Connection::open(path).expect("a file");
    let tables = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
        CREATE TABLE entry (id TEXT PRIMARY KEY, revision INTEGER, bytes BLOB); INSERT INTO entry VALUES ('a', 0, x'')";
    connection.execute_batch(tables).expect("a table");
    let mut transactions = move |n| {
        let begin = Instant::now();
        for _ in 0..n {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).expect("a lock");
            let update = "UPDATE entry SET revision = revision + 1, bytes = ?1 WHERE id = 'a'";
            transaction.prepare_cached(update).and_then(|mut update| update.execute([&PART])).expect("a change");
            transaction.commit().expect("a commit");
        }
        begin.elapsed()
    };
    // The log has its full length, as after the appends of the other stores.
    transactions(1_000);
    transactions
}
