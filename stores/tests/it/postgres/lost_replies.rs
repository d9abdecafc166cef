//! Changes that the server has made, and whose replies are lost: what their callers are told, and what is stored (S3, F1,
//! F8). Appends without a lease, and posts, are in `faults`.

use std::cell::Cell;
use std::time::Duration;

use emitree_middleware::store::{Append, EntryHead, EntryStatus, Holder, Post, Revision, Store, StoreError, Take};
use emitree_middleware::values::{KeyValues, ValueKey};
use emitree_stores::PostgresStore;
use futures_util::future::join;
use serde_json::json;
use tokio::task::yield_now;

use super::faults::beside;
use super::proxy::{Network, Proxy};
use super::server::{admin, connect, connected, schema_of, shared};

const LONG: Duration = Duration::from_secs(600);

/// A store behind a network that can be cut, and another one in the same schema.
struct Stores {
    url: String,
    proxy: Proxy,
    store: PostgresStore,
    other: PostgresStore,
}

impl Stores {
    /// Returns `None` if no server runs.
    async fn new() -> Option<Self> {
        let url = shared()?;
        let proxy = Proxy::start(&url).await;
        let store = connected(connect(&proxy.url).deadline(Duration::from_millis(200))).await;
        let other = beside(&url, &store).await;
        Some(Self { url, proxy, store, other })
    }

    /// Makes a change by a function whose reply is lost, and which is called again after `meanwhile`. Returns what the
    /// caller is told.
    async fn lose<T>(
        &self,
        function: &'static [u8],
        change: impl Future<Output = T>,
        meanwhile: impl Future<Output = ()>,
    ) -> T {
        let is_told = Cell::new(false);
        let change = async {
            let result = change.await;
            is_told.set(true);
            result
        };
        let meanwhile = async {
            meanwhile.await;
            assert!(!is_told.get(), "the reply is lost");
            self.proxy.set(Network::Works);
        };
        self.proxy.set(Network::SwallowsRepliesTo(function));
        join(change, meanwhile).await.0
    }

    /// Returns the head of the entry `a` once the other store sees a change.
    async fn until(&self, is_made: impl Fn(&EntryHead) -> bool) -> EntryHead {
        loop {
            match self.other.load("a").await.expect("loaded") {
                Some(entry) if is_made(&entry.head) => return entry.head,
                _ => yield_now().await,
            }
        }
    }

    /// Returns the ids of the entries that the other store takes.
    async fn taken(&self, by: &str) -> Vec<String> {
        let heads = self.other.take(&Take::new(by, LONG, ["q"]).most(10)).await.expect("entries");
        heads.into_iter().map(|head| head.id).collect()
    }
}

/// Appends to an entry of the queue `q`.
fn queued(id: &str, after: Revision) -> Append {
    let mut head = EntryHead::new(id, "job");
    (head.status, head.queue, head.revision) = (EntryStatus::Queued, Some("q".to_owned()), after);
    Append::new(head)
}

fn by(head: &EntryHead) -> Option<&str> {
    head.holder.as_ref().map(|Holder { by, .. }| &**by)
}

/// F1, F8
#[tokio::test]
async fn a_take_whose_reply_is_lost_is_not_repeated_and_its_entry_is_due_after_the_lease() {
    let Some(stores) = Stores::new().await else { return };
    for id in ["a", "b"] {
        stores.other.append(&queued(id, Revision::NONE).due(Duration::ZERO)).await.expect("stored");
    }
    stores.proxy.set(Network::SwallowsRepliesTo(b"take_1"));
    let error = stores.store.take(&Take::new("w", LONG, ["q"])).await.expect_err("no reply");
    assert!(matches!(error, StoreError::Failed { .. }), "{error:?}");
    stores.proxy.set(Network::Works);
    let head = stores.until(|head| head.attempts > 0).await;
    assert_eq!((by(&head), head.attempts), (Some("w"), 1));
    assert_eq!(stores.taken("w").await, ["b"], "a second take would have had it");
    assert_eq!(stores.taken("v").await, [""; 0]);

    // The lease ends.
    let schema = schema_of(&stores.other);
    let end = format!("UPDATE {schema}.entry SET until = clock_timestamp(), due = clock_timestamp() WHERE id = 'a'");
    admin(&stores.url).await.batch_execute(&end).await.expect("ended");
    assert_eq!(stores.taken("v").await, ["a"]);
    assert_eq!(stores.until(|head| by(head) == Some("v")).await.attempts, 2);
}

/// S3, F1
#[tokio::test]
async fn a_lease_whose_reply_is_lost_is_none_if_a_worker_has_taken_the_entry_since() {
    let Some(stores) = Stores::new().await else { return };
    let submitted = stores.other.append(&queued("a", Revision::NONE)).await.expect("stored");
    // The lease is over at once.
    let append = queued("a", submitted).part("1").by("h").holding(Duration::ZERO);
    let meanwhile = async {
        stores.until(|head| head.revision > submitted).await;
        assert_eq!(stores.taken("w").await, ["a"]);
    };
    let error = stores.lose(b"append_1", stores.store.append(&append), meanwhile).await.expect_err("taken");
    assert!(matches!(&error, StoreError::Held { holder, .. } if holder.by == "w"), "{error:?}");
    assert_eq!(stores.other.load("a").await.expect("loaded").expect("an entry").parts, ["1"], "it was made once");
}

/// S2, F8
#[tokio::test]
async fn a_removal_whose_reply_is_lost_removes_its_entry_and_no_later_one() {
    let Some(stores) = Stores::new().await else { return };
    for comes_again in [false, true] {
        let first = stores.other.append(&queued("a", Revision::NONE).part("1").by("h").holding(LONG)).await;
        let first = first.expect("stored");
        stores.other.post("a", &Post::new("1")).await.expect("kept");
        let later = Cell::new(Revision::NONE);
        let meanwhile = async {
            while stores.other.load("a").await.expect("loaded").is_some() {
                yield_now().await;
            }
            if comes_again {
                later.set(stores.other.append(&queued("a", Revision::NONE).part("2")).await.expect("stored"));
            }
        };
        let result = stores.lose(b"remove_1", Store::remove(&stores.store, "a", first), meanwhile).await;
        let entry = stores.other.load("a").await.expect("loaded");
        assert_eq!(stores.other.posts("a").await.expect("posts"), []);
        match result {
            Ok(()) => assert_eq!((comes_again, entry), (false, None)),
            Err(StoreError::Conflict { after, current, .. }) => {
                assert!(comes_again);
                assert_eq!((after, current), (first, later.get()));
                assert_eq!(entry.expect("the later entry").parts, ["2"]);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// F8
#[tokio::test]
async fn a_value_whose_reply_is_lost_is_written_or_removed() {
    let Some(stores) = Stores::new().await else { return };
    let key = ValueKey::new(["user", "ada"]).expect("a key");
    let value = json!({"language": "en"});
    for expected in [Some(value.clone()), None] {
        let is_made = async {
            while stores.other.read(&key).await.expect("read") != expected {
                yield_now().await;
            }
        };
        let result = match &expected {
            Some(value) => stores.lose(b"write_value_1", stores.store.write(&key, value), is_made).await,
            None => stores.lose(b"remove_value_1", KeyValues::remove(&stores.store, &key), is_made).await,
        };
        result.expect("the change is made");
        assert_eq!(stores.other.read(&key).await.expect("read"), expected);
    }
}

/// F4
#[tokio::test]
async fn a_release_whose_reply_is_lost_does_not_hide_a_post_from_the_next_change() {
    let Some(stores) = Stores::new().await else { return };
    let held = stores.other.append(&queued("a", Revision::NONE).by("h").holding(LONG)).await.expect("stored");
    let release = queued("a", held).by("h");
    let post = Post::new("yes");
    let meanwhile = async {
        stores.until(|head| by(head).is_none()).await;
        stores.other.post("a", &post).await.expect("kept");
    };
    let released = stores.lose(b"append_1", stores.store.append(&release), meanwhile).await.expect("released");
    // The author of the release does not know of the post.
    let next = stores.store.append(&queued("a", released).by("h").holding(LONG)).await;
    assert!(matches!(next, Err(StoreError::Conflict { .. })), "{next:?}");
}
