//! Networks that swallow bytes, connections that are lost, and servers that crash (S3, F8).

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use emitree_middleware::store::{Append, EntryHead, Post, Posted, Revision, Store, StoreError};
use emitree_stores::PostgresStore;
use futures_util::future::{join_all, try_join_all};
use tokio::sync::mpsc;
use tokio::task::yield_now;

use super::proxy::{Network, Proxy};
use super::server::{
    Own, admin, connect, connected, database, database_of, new_name, schema_of, shared, store, with_user,
};

const CUTS: [Network; 5] = [
    Network::Closes,
    Network::SwallowsRequests,
    Network::SwallowsReplies,
    Network::SwallowsBoth,
    Network::SwallowsRepliesTo(b"append_1"),
];

fn append(id: &str, after: Revision, part: impl Into<String>) -> Append {
    let mut head = EntryHead::new(id, "job");
    head.revision = after;
    Append::new(head).part(part.into())
}

/// Waits until the parts of an entry have a number, as another process sees them.
async fn until_parts(other: &PostgresStore, id: &str, parts: usize) {
    while other.load(id).await.expect("loaded").map_or(0, |entry| entry.parts.len()) < parts {
        yield_now().await;
    }
}

/// Returns another store in the same schema.
pub(super) async fn beside(url: &str, store: &PostgresStore) -> PostgresStore {
    PostgresStore::connect(url).schema(schema_of(store)).await.expect("a store")
}

/// S3, F8
#[tokio::test]
async fn a_change_whose_reply_is_lost_is_made_once_and_its_caller_is_told_its_own_revision() {
    let Some(url) = shared() else { return };
    let proxy = Proxy::start(&url).await;
    let store = connected(connect(&proxy.url).deadline(Duration::from_millis(200))).await;
    let other = beside(&url, &store).await;
    let mut revision = Revision::NONE;
    for (n, cut) in CUTS.into_iter().enumerate() {
        proxy.set(cut);
        let change = append("a", revision, n.to_string());
        let change = tokio::spawn({
            let store = store.clone();
            async move { store.append(&change).await }
        });
        if matches!(cut, Network::SwallowsReplies | Network::SwallowsRepliesTo(_)) {
            // The change is made, and nobody is told.
            until_parts(&other, "a", n + 1).await;
        } else {
            // A first try has failed, and nothing is made.
            proxy.until_accepted().await;
            assert_eq!(other.load("a").await.expect("loaded").map_or(0, |entry| entry.parts.len()), n);
        }
        assert!(!change.is_finished());
        proxy.set(Network::Works);
        revision = change.await.expect("no panic").expect("stored");
        let entry = other.load("a").await.expect("loaded").expect("an entry");
        assert_eq!((entry.head.revision, entry.parts.len()), (revision, n + 1), "{cut:?}");
    }
}

/// F3, F4
#[tokio::test]
async fn a_post_whose_reply_is_lost_is_kept_once_and_its_sender_is_told_so() {
    let Some(url) = shared() else { return };
    let proxy = Proxy::start(&url).await;
    let store = connected(connect(&proxy.url).deadline(Duration::from_millis(200))).await;
    let other = beside(&url, &store).await;
    let mut revision = store.append(&append("a", Revision::NONE, "1")).await.expect("stored");
    // The last one is about appends.
    for cut in CUTS.into_iter().filter(|cut| !matches!(cut, Network::SwallowsRepliesTo(_))) {
        proxy.set(cut);
        let post = Post::new("yes").key(format!("{cut:?}"));
        let sent = tokio::spawn({
            let (store, post) = (store.clone(), post.clone());
            async move { store.post("a", &post).await }
        });
        if cut == Network::SwallowsReplies {
            // The post is kept, and taken before its sender is told.
            while other.posts("a").await.expect("posts").is_empty() {
                yield_now().await;
            }
            let mut head = other.load("a").await.expect("loaded").expect("an entry").head;
            head.revision = other.append(&Append::new(head.clone()).taking([post.id])).await.expect("taken");
            assert!(head.revision > revision);
        } else {
            proxy.until_accepted().await;
            assert_eq!(other.posts("a").await.expect("posts"), []);
        }
        assert!(!sent.is_finished());
        proxy.set(Network::Works);
        assert_eq!(sent.await.expect("no panic").expect("kept"), Posted::Kept, "{cut:?}");
        let waiting = other.posts("a").await.expect("posts");
        assert_eq!(waiting.len(), usize::from(cut != Network::SwallowsReplies), "{cut:?}: {waiting:?}");
        let head = other.load("a").await.expect("loaded").expect("an entry").head;
        let take = Append::new(head).taking(waiting.iter().map(|post| post.id));
        revision = other.append(&take).await.expect("taken");
    }
}

#[tokio::test]
async fn a_connection_that_does_not_answer_is_closed_although_replies_are_pending() {
    let Some(url) = shared() else { return };
    let proxy = Proxy::start(&url).await;
    let connect = connect(&proxy.url).deadline(Duration::from_millis(250)).patience(Duration::ZERO);
    let store = connected(connect).await;
    proxy.set(Network::SwallowsReplies);
    for _ in 0..10 {
        let results = join_all((0..8).map(|_| store.load("a"))).await;
        for error in results.into_iter().map(|result| result.expect_err("no reply")) {
            assert!(error.to_string().contains("cannot be read"), "{error}");
        }
        // The proxy notices a connection that is closed a little later.
        for _ in 0..500 {
            if proxy.open() > 4 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        assert!(proxy.open() <= 4, "{} connections", proxy.open());
    }
    proxy.set(Network::Works);
    for _ in 0..20 {
        if store.load("a").await.is_ok() {
            return;
        }
    }
    panic!("it still waits on connections that do not answer");
}

#[tokio::test]
async fn after_its_patience_a_call_fails_and_says_how_often_it_was_tried() {
    let Some(url) = shared() else { return };
    let proxy = Proxy::start(&url).await;
    let connect = connect(&proxy.url).deadline(Duration::from_millis(200)).patience(Duration::from_millis(500));
    let store = connected(connect).await;
    for (cut, remedy) in [(Network::Closes, ""), (Network::SwallowsBoth, ": check the network, or raise the deadline")]
    {
        proxy.set(cut);
        let error = store.append(&append("a", Revision::NONE, "1")).await.expect_err("no server");
        let message = error.to_string();
        let name = proxy.url.replace("?sslmode=disable", "");
        assert!(message.starts_with(&format!("`{name}` could not be written for ")), "{message}");
        assert!(message.contains("s, in ") && message.ends_with(&format!("tries{remedy}")), "{message}");
        assert!(error.source().is_some(), "{error:?}");
    }
}

#[tokio::test]
async fn a_call_goes_on_when_an_administrator_ends_its_connection() {
    let Some(url) = shared() else { return };
    let url = database(&url, "").await;
    // In a transaction, the list of backends would stay as it was.
    let (store, locks, admin) = (store(&url).await, admin(&url).await, admin(&url).await);
    let lock = format!("BEGIN; LOCK TABLE {}.part IN EXCLUSIVE MODE", schema_of(&store));
    locks.batch_execute(&lock).await.expect("a lock");
    let change = append("a", Revision::NONE, "1");
    let change = tokio::spawn({
        let store = store.clone();
        async move { store.append(&change).await }
    });
    let waiting = "SELECT l.pid FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
        WHERE NOT l.granted AND a.datname = $1";
    let name = database_of(&url);
    let pid: i32 = loop {
        match admin.query_opt(waiting, &[&name]).await.expect("locks") {
            Some(row) => break row.get(0),
            None => yield_now().await,
        }
    };
    admin.query_one("SELECT pg_terminate_backend($1)", &[&pid]).await.expect("ended");
    // It is sent again, and waits again.
    loop {
        match admin.query_opt(waiting, &[&name]).await.expect("locks") {
            Some(row) if row.get::<_, i32>(0) != pid => break,
            _ => yield_now().await,
        }
    }
    locks.batch_execute("COMMIT").await.expect("unlocked");
    change.await.expect("no panic").expect("stored");
    assert_eq!(store.load("a").await.expect("loaded").expect("an entry").parts.len(), 1);
}

#[tokio::test]
async fn a_server_that_has_become_read_only_is_left_for_another_connection() {
    let Some(url) = shared() else { return };
    let (admin, url) = (admin(&url).await, database(&url, "").await);
    let proxy = Proxy::start(&url).await;
    let store = connect(&proxy.url).patience(Duration::from_secs(10)).await.expect("a store");
    let name = database_of(&url);
    let read_only = async |value: &str| {
        let set = format!("ALTER DATABASE {name} SET default_transaction_read_only = {value}");
        admin.batch_execute(&set).await.expect("set");
    };
    read_only("on").await;
    proxy.set(Network::Closes);
    while proxy.open() > 0 {
        yield_now().await;
    }
    proxy.set(Network::Works);
    let change = append("a", Revision::NONE, "1");
    let change = tokio::spawn(async move { store.append(&change).await });
    // Once for the connection that was closed, and once for the one that is read-only.
    proxy.until_accepted().await;
    proxy.until_accepted().await;
    read_only("off").await;
    change.await.expect("no panic").expect("stored");
}

#[tokio::test]
async fn a_server_that_is_full_is_asked_again() {
    let Some(url) = shared() else { return };
    let (url, role) = (database(&url, "").await, new_name("few"));
    let admin = admin(&url).await;
    let schema = new_name("full");
    admin.batch_execute(&format!("CREATE ROLE {role} LOGIN CONNECTION LIMIT 1")).await.expect("a role");
    admin.batch_execute(&PostgresStore::schema(&schema, &role).expect("SQL")).await.expect("a schema");
    let store = PostgresStore::connect(with_user(&url, &role)).schema(schema).await.expect("a store");
    let appends: Vec<_> = (0..50).map(|n| append(&n.to_string(), Revision::NONE, "1")).collect();
    let stored = try_join_all(appends.iter().map(|append| store.append(append))).await.expect("stored");
    assert_eq!(stored.len(), 50);
}

#[tokio::test]
async fn a_statement_that_waits_for_a_lock_is_sent_again_and_made_once() {
    let Some(url) = shared() else { return };
    let store = connected(connect(&url).deadline(Duration::from_millis(250))).await;
    let first = store.append(&append("a", Revision::NONE, "1")).await.expect("stored");
    let (other, admin) = (beside(&url, &store).await, admin(&url).await);
    let lock = format!("BEGIN; LOCK TABLE {}.part IN EXCLUSIVE MODE", schema_of(&store));
    admin.batch_execute(&lock).await.expect("a lock");
    let change = append("a", first, "2");
    let change = tokio::spawn({
        let store = store.clone();
        async move { store.append(&change).await }
    });
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    while admin.query_one(waiting, &[]).await.expect("locks").get::<_, i64>(0) < 3 {
        yield_now().await;
    }
    admin.batch_execute("COMMIT").await.expect("unlocked");
    let second = change.await.expect("no panic").expect("stored");
    let entry = other.load("a").await.expect("loaded").expect("an entry");
    assert_eq!((entry.head.revision, entry.parts.len()), (second, 2));
}

#[tokio::test]
async fn a_store_that_is_dropped_closes_its_connections() {
    let Some(url) = shared() else { return };
    let proxy = Proxy::start(&url).await;
    let store = connect(&proxy.url).await.expect("a store");
    try_join_all((0..100).map(|_| store.load("a"))).await.expect("loaded");
    assert_eq!(proxy.open(), 4);
    drop(store);
    while proxy.open() > 0 {
        yield_now().await;
    }
}

/// Appends numbers to an entry until it has as many parts, and sends each number that was stored.
async fn append_numbers(store: PostgresStore, id: String, parts: usize, stored: mpsc::Sender<()>) {
    let mut revision = Revision::NONE;
    for n in 0..parts {
        revision = match store.append(&append(&id, revision, n.to_string())).await {
            Ok(revision) => revision,
            Err(error) => panic!("{id}: {error}, {:?}", error.source()),
        };
        stored.send(()).await.expect("the test waits");
    }
}

/// Appends to several entries while something happens after each of these numbers of appends, and checks that each
/// number was stored once, in its order.
async fn assert_each_once(store: PostgresStore, other: &PostgresStore, happens: impl AsyncFn(usize)) {
    const ENTRIES: usize = 8;
    const PARTS: usize = 60;
    // So the appends are not far ahead of what happens.
    let (sender, mut stored) = mpsc::channel(1);
    let tasks: Vec<_> = (0..ENTRIES)
        .map(|entry| tokio::spawn(append_numbers(store.clone(), entry.to_string(), PARTS, sender.clone())))
        .collect();
    drop(sender);
    let mut count = 0;
    while stored.recv().await.is_some() {
        count += 1;
        // After the last append, nothing would notice it.
        if count % 40 == 0 && count < ENTRIES * PARTS {
            happens(count / 40 - 1).await;
        }
    }
    join_all(tasks).await.into_iter().for_each(|task| task.expect("no panic"));
    for entry in 0..ENTRIES {
        let parts = other.load(&entry.to_string()).await.expect("loaded").expect("an entry").parts;
        let expected: Vec<_> = (0..PARTS).map(|n| n.to_string()).collect();
        assert_eq!(parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect::<Vec<_>>(), expected);
    }
}

/// S3, F8
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_change_is_made_once_by_a_network_that_fails_in_every_way() {
    let Some(url) = shared() else { return };
    let proxy = Arc::new(Proxy::start(&url).await);
    let store = connected(connect(&proxy.url).deadline(Duration::from_millis(300))).await;
    let other = beside(&url, &store).await;
    assert_each_once(store.clone(), &other, async |n| {
        proxy.set(CUTS[n % CUTS.len()]);
        proxy.until_accepted().await;
        proxy.set(Network::Works);
    })
    .await;
}

/// F8
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_acknowledged_survives_immediate_stops_of_the_server_and_is_there_once() {
    // Without our override, the database would acknowledge changes up to 10 s before they are on the disk.
    let Some(own) = Own::start(&["synchronous_commit=off", "wal_writer_delay=10s"]) else { return };
    let own = Arc::new(own);
    let store = connect(&own.url).await.expect("a store");
    let other = beside(&own.url, &store).await;
    assert_each_once(store, &other, async |n| {
        if n % 4 == 0 {
            let own = Arc::clone(&own);
            let restarted = move || {
                own.crash();
                own.restart();
            };
            tokio::task::spawn_blocking(restarted).await.expect("restarted");
        }
    })
    .await;
}

/// F8
#[tokio::test]
async fn a_change_is_on_the_disk_although_the_database_does_not_wait_for_it() {
    let Some(own) = Own::start(&["synchronous_commit=off", "wal_writer_delay=10s"]) else { return };
    let store = connect(&own.url).await.expect("a store");
    let revision = store.append(&append("a", Revision::NONE, "1")).await.expect("stored");
    own.crash();
    own.restart();
    assert_eq!(store.load("a").await.expect("loaded").map(|entry| entry.head.revision), Some(revision));
    store.remove("a", revision).await.expect("removed");
    own.crash();
    own.restart();
    assert_eq!(store.load("a").await.expect("loaded"), None);
    let error = store.append(&append("a", revision, "2")).await.expect_err("removed");
    assert!(matches!(error, StoreError::Conflict { current: Revision::NONE, .. }), "{error:?}");
}
