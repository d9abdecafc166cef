//! Many senders of posts, against those that take them (F4).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use emitree_middleware::store::{Append, EntryHead, Post, Posted, Revision, StoreError};
use futures_util::future::try_join_all;

use super::work::{LONG, queued, take};
use super::{Shared, load};

const SENDERS: usize = 4;
/// The number of releases that race against posts.
const ROUNDS: usize = 300;

/// Takes all posts that wait into the parts of an entry, and releases it.
async fn work(store: &Shared, head: EntryHead) -> Result<Revision, StoreError> {
    let by = head.holder.as_ref().map(|holder| holder.by.clone()).unwrap_or_default();
    let posts = store.posts(&head.id).await?;
    let mut append = Append::new(head).by(by).taking(posts.iter().map(|post| post.id));
    append.parts.extend(posts.into_iter().map(|post| post.body));
    store.append(&append).await
}

/// Asserts that the parts of an entry are the bodies of all posts, each once, in the order of their senders.
async fn assert_each_once(store: &Shared, id: &str, senders: usize, posts: usize) -> Result<(), StoreError> {
    let mut by_sender: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for part in load(store, id).await?.parts {
        let text = String::from_utf8_lossy(&part).into_owned();
        let (sender, number) = text.split_once('.').unwrap_or_default();
        by_sender.entry(sender.to_owned()).or_default().push(number.parse().unwrap_or(usize::MAX));
    }
    let expected = (0..senders).map(|sender| (sender.to_string(), (0..posts).collect())).collect();
    assert_eq!(by_sender, expected, "each post is taken once, in the order of its sender");
    assert_eq!(store.posts(id).await?, []);
    Ok(())
}

/// F4
pub(super) async fn no_release_misses_a_post(store: Shared) -> Result<(), StoreError> {
    store.append(&queued("a", "q").by("w").holding(LONG)).await?;
    let mut missed = 0;
    for round in 0..ROUNDS {
        let held = load(&store, "a").await?.head;
        let senders = (0..SENDERS).map(|sender| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.post("a", &Post::new(format!("{sender}.{round}"))).await.map(drop) })
        });
        let release = {
            let store = Arc::clone(&store);
            tokio::spawn(async move { work(&store, held).await.map(drop) })
        };
        let ended = try_join_all(senders.chain([release])).await;
        for result in ended.map_err(|error| StoreError::failed("a task panicked", error))? {
            result?;
        }
        // Another worker is told of the posts that the release has left.
        let left = load(&store, "a").await?.head;
        let woken = store.take(&take("w", ["q"])).await?;
        if left.posts > 0 && woken.is_empty() {
            missed += 1;
        }
        assert!(left.posts > 0 || woken.is_empty(), "an entry without posts is not due");
        if woken.is_empty() {
            let free = load(&store, "a").await?.head;
            store.append(&Append::new(free).by("w").holding(LONG)).await?;
        }
    }
    assert_eq!(missed, 0, "the number of {ROUNDS} releases that left posts of which no worker is told");
    let held = load(&store, "a").await?.head;
    work(&store, held).await?;
    assert_each_once(&store, "a", SENDERS, ROUNDS).await
}

/// F4
pub(super) async fn posts_of_8_senders_are_taken_once_by_3_workers(store: Shared) -> Result<(), StoreError> {
    const POSTS: usize = 25;
    store.append(&queued("a", "q")).await?;
    let sending = Arc::new(AtomicUsize::new(8));
    let senders = (0..8).map(|sender| {
        let (store, sending) = (Arc::clone(&store), Arc::clone(&sending));
        tokio::spawn(async move {
            for n in 0..POSTS {
                let post = Post::new(format!("{sender}.{n}")).key(format!("{sender}.{n}"));
                // The second time, it may have been taken.
                for _ in 0..2 {
                    assert_eq!(store.post("a", &post).await?, Posted::Kept);
                }
            }
            sending.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, StoreError>(())
        })
    });
    let workers = (0..3).map(|n| {
        let (store, sending) = (Arc::clone(&store), Arc::clone(&sending));
        tokio::spawn(async move {
            let take = take(&format!("w{n}"), ["q"]);
            loop {
                let is_last = sending.load(Ordering::SeqCst) == 0;
                let heads = store.take(&take).await?;
                // A worker that has released the entry looks once more, so one of them finds the posts that are left.
                if heads.is_empty() && is_last {
                    return Ok(());
                }
                for head in heads {
                    work(&store, head).await?;
                }
                tokio::task::yield_now().await;
            }
        })
    });
    let ended = try_join_all(senders.chain(workers)).await;
    for result in ended.map_err(|error| StoreError::failed("a task panicked", error))? {
        result?;
    }
    assert_each_once(&store, "a", 8, POSTS).await
}
