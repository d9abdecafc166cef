//! The cost of changes of a store on a PostgreSQL server, beside the statements that people write by hand.
//!
//! ```text
//! scripts/postgres.sh start
//! cargo bench --manifest-path benches/Cargo.toml --features postgres --bench postgres
//! ```

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use emitree::middleware::Durable;
use emitree::middleware::durable::Worker;
use emitree::middleware::store::{Append, EntryHead, EntryStatus, Filter, Post, Revision, Store};
use emitree::stores::PostgresStore;
use emitree::{RunContext, runnable_fn};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};

use crate::support::{Case, Extra, Suite};
use crate::talks::talks;

mod support;
#[path = "support/talks.rs"]
mod talks;

/// The bytes that each change writes into a part.
const PART: [u8; 400] = [b'x'; 400];
/// The appends of a turn with one call: its response, the beginning of the call, its result, and the end of the turn.
const APPENDS_OF_A_TURN: u32 = 4;
const WORKERS: usize = 8;
const JOBS: usize = 1_000;

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/postgres.sh");
    let url = Command::new(script).arg("url").output().expect("the script");
    if !url.status.success() {
        print!("skipped: {}", String::from_utf8_lossy(&url.stderr));
        return;
    }
    let server = Server::new(String::from_utf8_lossy(&url.stdout).trim());
    let mut suite = Suite::new(&["emitree", "by hand"]);
    let statement = suite.case(server.statements());
    let round_trips = suite.case(server.round_trips());
    let append = suite.case(server.appends());
    let row = suite.row("PA", "an append of 400 bytes, on the disk of the server", append);
    row.beside("by hand", statement).at_most(2.5, "a statement that changes the same two rows", statement);
    let row = suite.row("PB", "... beside a transaction of four statements", append);
    row.beside("by hand", round_trips).at_most(1.3, "its round trips", round_trips);
    let turns = |turns| talks(&server.runtime, &server.store, 1, turns);
    let turn = Extra::shared(suite.case(turns(11)), suite.case(turns(1)), 10);
    let bare = suite.case(server.statements_of_turns());
    let row = suite.row("PT", "a turn of an agent with one call", turn);
    row.beside("by hand", bare).at_most(3.0, "as many statements as it has appends", bare);
    for most in [1, 16] {
        let few = suite.case(server.takes("few", most));
        let many = suite.case(server.takes("many", most));
        let (name, what, times) = match most {
            1 => ("PC", "a worker takes one of 100,000 entries that are due, beside 100,000 that are not", 4.0),
            _ => ("PD", "... takes 16", 8.0),
        };
        let row = suite.row(name, what, many);
        row.beside("by hand", few).at_most(times, "among 100", few);
    }
    let post = suite.case(server.posts(false));
    let taken = suite.case(server.posts(true));
    let row = suite.row("PP", "a post, until the change of its holder has it", taken);
    row.beside("by hand", post).at_most(2.0, "the post", post);
    suite.run();
    server.jobs();
}

/// A store, and a connection with tables like the store has.
struct Server {
    runtime: Arc<Runtime>,
    store: PostgresStore,
    client: Arc<Client>,
    url: String,
}

impl Server {
    fn new(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (store, client) = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
            tokio::spawn(connection);
            let tables = "DROP SCHEMA IF EXISTS bench CASCADE; DROP SCHEMA IF EXISTS bench_few CASCADE;
                DROP SCHEMA IF EXISTS bench_many CASCADE; DROP SCHEMA IF EXISTS bench_jobs CASCADE; DROP SCHEMA IF EXISTS bare CASCADE; CREATE SCHEMA bare;
                CREATE TABLE bare.entry (id text PRIMARY KEY, revision bigint, head text);
                CREATE TABLE bare.part (entry text, position bigint, bytes bytea, PRIMARY KEY (entry, position));
                INSERT INTO bare.entry VALUES ('a', 0, '{}')";
            client.batch_execute(tables).await.expect("tables");
            (PostgresStore::connect(url).schema("bench").await.expect("a store"), client)
        });
        Self { runtime: Arc::new(runtime), store, client: Arc::new(client), url: url.to_owned() }
    }

    /// Appends that add a part each.
    fn appends(&self) -> impl Case + use<> {
        let (runtime, store) = (Arc::clone(&self.runtime), self.store.clone());
        let mut head = EntryHead::new("a", "session");
        head.status = EntryStatus::Waiting;
        head.revision = Revision::NONE;
        move |n| {
            let begin = Instant::now();
            for _ in 0..n {
                let append = Append::new(head.clone()).part(&PART[..]);
                head.revision = runtime.block_on(store.append(&append)).expect("stored");
            }
            begin.elapsed()
        }
    }

    /// One statement that changes the row of an entry, and adds the row of a part.
    fn statements(&self) -> impl Case + use<> {
        let sql = "WITH changed AS (
                UPDATE bare.entry SET revision = revision + 1, head = $1 WHERE id = 'a' RETURNING id, revision
            )
            INSERT INTO bare.part SELECT id, revision, $2 FROM changed";
        let (runtime, client) = (Arc::clone(&self.runtime), Arc::clone(&self.client));
        let head = serde_json::to_string(&EntryHead::new("a", "session")).expect("JSON");
        let statement = runtime.block_on(client.prepare(sql)).expect("a statement");
        move |n| {
            let begin = Instant::now();
            for _ in 0..n {
                let changed = runtime.block_on(client.execute(&statement, &[&head, &&PART[..]])).expect("changed");
                assert_eq!(changed, 1);
            }
            begin.elapsed()
        }
    }

    /// A worker takes entries of a queue, in transactions that are rolled back, so that no disk is measured. The queue is
    /// in a schema of its own, and has 100 entries that are due, or 100,000 beside as many that are not.
    fn takes(&self, queue: &str, most: usize) -> impl Case + use<> {
        let (runtime, client, schema) = (Arc::clone(&self.runtime), Arc::clone(&self.client), format!("bench_{queue}"));
        let (due, later) = if queue == "few" { (100, 0) } else { (100_000, 100_000) };
        let fill = format!(
            "INSERT INTO {schema}.entry (id, revision, status, queue, due)
                SELECT n, n, 'queued', 'q', now() + CASE WHEN n > {due} THEN interval '1 day' ELSE interval '-1 day' END
                FROM generate_series(1, {due} + {later}) AS n
                WHERE NOT EXISTS (SELECT FROM {schema}.entry);
            VACUUM ANALYZE {schema}.entry"
        );
        runtime.block_on(async {
            PostgresStore::connect(&self.url).schema(&*schema).await.expect("a store");
            for statement in fill.split(';') {
                client.batch_execute(statement).await.expect("entries");
            }
        });
        let take = format!("BEGIN; SELECT {schema}.take_1('w', 30, ARRAY['q'], {most}); ROLLBACK");
        move |n| {
            let begin = Instant::now();
            for _ in 0..n {
                runtime.block_on(client.batch_execute(&take)).expect("entries");
            }
            begin.elapsed()
        }
    }

    /// Posts to an entry whose holder takes them. If not `all`, only the post is measured.
    fn posts(&self, all: bool) -> impl Case + use<> {
        let (runtime, store) = (Arc::clone(&self.runtime), self.store.clone());
        let mut head = EntryHead::new(format!("posts-{all}"), "session");
        let hold = |head: &EntryHead| Append::new(head.clone()).by("holder").holding(Duration::from_secs(600));
        head.revision = runtime.block_on(store.append(&hold(&head))).expect("stored");
        move |n| {
            let mut time = Duration::ZERO;
            for _ in 0..n {
                let begin = Instant::now();
                let post = Post::new(&PART[..]);
                runtime.block_on(store.post(&head.id, &post)).expect("posted");
                let posted = begin.elapsed();
                let waiting = runtime.block_on(store.posts(&head.id)).expect("posts");
                let append = hold(&head).taking(waiting.iter().map(|post| post.id)).part(&PART[..]);
                head.revision = runtime.block_on(store.append(&append)).expect("stored");
                time += if all { begin.elapsed() } else { posted };
            }
            time
        }
    }

    /// Prints how long eight workers need for a thousand jobs without steps, beside eight loops by hand, once each, and
    /// the share of the worker that had the fewest.
    fn jobs(&self) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
        let (time, shares) = runtime.block_on(self.work());
        let by_hand = runtime.block_on(self.work_by_hand());
        let ratio = by_hand.as_secs_f64() / time.as_secs_f64();
        let least = shares.iter().min().copied().unwrap_or_default() as f64 * WORKERS as f64 / JOBS as f64;
        println!(
            "\n{WORKERS} workers run {JOBS} jobs in {time:.2?}, loops by hand in {by_hand:.2?}: {ratio:.2} ≥ 0.5 × as many a \
             second; the smallest share is {least:.2} ≥ 0.7 of its part"
        );
    }

    async fn work(&self) -> (Duration, Vec<usize>) {
        let open = || PostgresStore::connect(&self.url).schema("bench_jobs");
        let store = open().await.expect("a store");
        for n in 0..JOBS {
            Durable::new(&store, format!("job-{n}")).submit("bench", &n).await.expect("submitted");
        }
        let counts: Vec<_> = (0..WORKERS).map(|_| Arc::new(AtomicUsize::new(0))).collect();
        let mut stores = Vec::new();
        for _ in 0..WORKERS {
            stores.push(open().await.expect("a store"));
        }
        let begin = Instant::now();
        let mut workers = Vec::new();
        for (count, store) in counts.iter().zip(stores) {
            let count = Arc::clone(count);
            let job = runnable_fn("job", move |n: usize, _: RunContext| {
                count.fetch_add(1, Ordering::Relaxed);
                async move { Ok(n) }
            });
            workers.push(Worker::new(&store).serve("bench", job).start().await.expect("a worker"));
        }
        let count = || counts.iter().map(|count| count.load(Ordering::Relaxed)).sum::<usize>();
        while count() < JOBS || !store.list(&Filter::unfinished().limit(1)).await.expect("a list").is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
        let time = begin.elapsed();
        for worker in workers {
            worker.shutdown(Duration::from_secs(30)).await;
        }
        (time, counts.iter().map(|count| count.load(Ordering::Relaxed)).collect())
    }

    /// Each loop takes a row, and marks it as done in the same transaction.
    async fn work_by_hand(&self) -> Duration {
        let tables = format!(
            "CREATE TABLE bare.job (id bigint PRIMARY KEY, input text, done timestamptz);
            INSERT INTO bare.job SELECT n, '{{}}' FROM generate_series(1, {JOBS}) AS n"
        );
        // The runtime of the other connection does not run meanwhile.
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.expect("a connection");
        tokio::spawn(connection);
        client.batch_execute(&tables).await.expect("a table");
        let begin = Instant::now();
        let mut loops = JoinSet::new();
        for _ in 0..WORKERS {
            let url = self.url.clone();
            loops.spawn(async move {
                let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("a connection");
                tokio::spawn(connection);
                let take =
                    "SELECT id, input FROM bare.job WHERE done IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED";
                let take = client.prepare(take).await.expect("a statement");
                let done = client.prepare("UPDATE bare.job SET done = now() WHERE id = $1").await.expect("a statement");
                loop {
                    client.batch_execute("BEGIN").await.expect("a transaction");
                    let row = client.query_opt(&take, &[]).await.expect("a row");
                    if let Some(row) = &row {
                        client.execute(&done, &[&row.get::<_, i64>(0)]).await.expect("done");
                    }
                    client.batch_execute("COMMIT").await.expect("a commit");
                    if row.is_none() {
                        return;
                    }
                }
            });
        }
        loops.join_all().await;
        begin.elapsed()
    }

    fn statements_of_turns(&self) -> impl Case + use<> {
        let mut statements = self.statements();
        move |n| statements(n * u64::from(APPENDS_OF_A_TURN))
    }

    /// A transaction that reads the revision, changes the entry and adds a part, as people write it.
    fn round_trips(&self) -> impl Case + use<> {
        let (runtime, client) = (Arc::clone(&self.runtime), Arc::clone(&self.client));
        let head = serde_json::to_string(&EntryHead::new("a", "session")).expect("JSON");
        let prepare = |sql: &str| runtime.block_on(client.prepare(sql)).expect("a statement");
        let read = prepare("SELECT revision FROM bare.entry WHERE id = 'a' FOR UPDATE");
        let update = prepare("UPDATE bare.entry SET revision = $1, head = $2 WHERE id = 'a'");
        let insert = prepare("INSERT INTO bare.part VALUES ('a', $1, $2)");
        move |n| {
            let begin = Instant::now();
            for _ in 0..n {
                runtime.block_on(async {
                    client.batch_execute("BEGIN").await.expect("a transaction");
                    let revision: i64 = client.query_one(&read, &[]).await.expect("a row").get(0);
                    client.execute(&update, &[&(revision + 1), &head]).await.expect("changed");
                    client.execute(&insert, &[&(revision + 1), &&PART[..]]).await.expect("inserted");
                    client.batch_execute("COMMIT").await.expect("a commit");
                });
            }
            begin.elapsed()
        }
    }
}
