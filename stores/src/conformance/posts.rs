//! Posts, one after another (F1 to F5, S5).

use std::time::Duration;

use bytes::Bytes;
use emitree_middleware::store::{
    Append, EntryStatus, Filter, MAX_ID_BYTES, MAX_PART_BYTES, MAX_POSTS, Post, Posted, Revision, StoreError,
};
use futures_util::future::try_join_all;

use super::work::{LONG, SHORT, assert_held, holder, queued, released, take, taken};
use super::{Shared, assert_conflict, assert_entry, head, load, running};

/// Sends a post that must be kept.
async fn keep(store: &Shared, id: &str, post: &Post) -> Result<(), StoreError> {
    assert_eq!(store.post(id, post).await?, Posted::Kept, "the post {post:?} to `{id}`");
    Ok(())
}

/// Asserts that these posts wait in an entry, and that its heads count them.
async fn assert_waiting(store: &Shared, id: &str, posts: &[&Post]) -> Result<(), StoreError> {
    let waiting = store.posts(id).await?;
    assert_eq!(waiting.iter().collect::<Vec<_>>(), posts, "the posts that wait in `{id}`");
    let head = load(store, id).await?.head;
    assert_eq!(head.posts as usize, posts.len(), "the number of posts that wait in `{id}`");
    let listed = store.list(&Filter::of([head.status])).await?;
    assert!(listed.contains(&head), "a list counts the posts of `{id}`: {listed:?}");
    Ok(())
}

fn assert_invalid<T: std::fmt::Debug>(result: &Result<T, StoreError>, what: &str) {
    assert!(matches!(result, Err(StoreError::Invalid { .. })), "{what} must be refused: {result:?}");
}

/// Appends an entry of the queue `q` that a process holds.
async fn held_by(store: &Shared, id: &str, by: &str) -> Result<Revision, StoreError> {
    store.append(&queued(id, "q").by(by).holding(LONG)).await
}

/// F3, F4
pub(super) async fn posts_wait_in_their_order_and_each_of_them_once(store: Shared) -> Result<(), StoreError> {
    let every_byte: Vec<u8> = (0..=255).collect();
    let [first, second, third] = [Bytes::from(every_byte), Bytes::new(), Bytes::from_static(b"3")].map(Post::new);
    let second = second.key("question \"2\"");
    assert_conflict(&store.post("a", &first).await, Revision::NONE, Revision::NONE);
    assert_eq!(store.posts("a").await?, [], "no entry");
    store.append(&running("a", Revision::NONE, "1")).await?;
    assert_waiting(&store, "a", &[]).await?;
    for post in [&first, &second, &third] {
        keep(&store, "a", post).await?;
    }
    assert_waiting(&store, "a", &[&first, &second, &third]).await?;
    let at = load(&store, "a").await?.head.revision;
    // The id counts, and not the body.
    for again in [&first, &second, &third, &Post::new("other").id(first.id)] {
        keep(&store, "a", again).await?;
    }
    assert_waiting(&store, "a", &[&first, &second, &third]).await?;

    let unknown = Post::new("").id;
    let takes = [unknown, third.id, first.id, first.id];
    let at = store.append(&running("a", at, "2").by("h").holding(LONG).taking(takes)).await?;
    assert_entry(&store, "a", at, &[b"1", b"2"]).await?;
    assert_waiting(&store, "a", &[&second]).await?;
    for again in [&first, &third] {
        keep(&store, "a", again).await?;
    }
    assert_waiting(&store, "a", &[&second]).await?;
    let at = store.append(&running("a", at, "3").by("h").taking([first.id, second.id])).await?;
    assert_entry(&store, "a", at, &[b"1", b"2", b"3"]).await?;
    assert_waiting(&store, "a", &[]).await?;

    // Another entry does not know them.
    let other = store.append(&running("b", Revision::NONE, "1")).await?;
    keep(&store, "b", &first).await?;
    assert_waiting(&store, "b", &[&first]).await?;
    assert_waiting(&store, "a", &[]).await?;
    assert!(load(&store, "b").await?.head.revision > other, "a post to a free entry is a change");
    assert_entry(&store, "a", at, &[b"1", b"2", b"3"]).await
}

/// F5
pub(super) async fn of_posts_with_one_key_the_first_one_is_kept(store: Shared) -> Result<(), StoreError> {
    let revision = held_by(&store, "a", "h").await?;
    let first = Post::new("yes").key("question");
    let late = Post::new("no").key("question").queue("q");
    keep(&store, "a", &first).await?;
    assert_eq!(store.post("a", &late).await?, Posted::Refused(first.clone()), "it waits");
    keep(&store, "a", &first).await?;
    let other = Post::new("yes").key("other question");
    let without = Post::new("yes");
    keep(&store, "a", &other).await?;
    keep(&store, "a", &without).await?;
    assert_waiting(&store, "a", &[&first, &other, &without]).await?;

    store.append(&queued_at("a", revision).by("h").holding(LONG).taking([first.id])).await?;
    let emptied = Post::new("").id(first.id).key("question");
    for late in [&late, &Post::new("no").key("question")] {
        assert_eq!(store.post("a", late).await?, Posted::Refused(emptied.clone()), "it was taken");
    }
    keep(&store, "a", &first).await?;
    assert_waiting(&store, "a", &[&other, &without]).await?;
    held_by(&store, "b", "h").await?;
    keep(&store, "b", &late).await?;
    Ok(())
}

/// Appends to an entry of the queue `q`.
fn queued_at(id: &str, after: Revision) -> Append {
    let mut append = queued(id, "q");
    append.head.revision = after;
    append
}

/// F1, F4
pub(super) async fn a_post_to_a_held_entry_waits_for_its_holder(store: Shared) -> Result<(), StoreError> {
    let mut held = queued("a", "q").by("h").holding(LONG);
    held.head.status = EntryStatus::Paused;
    let revision = store.append(&held).await?;
    let first = Post::new("1");
    keep(&store, "a", &first).await?;
    let found = load(&store, "a").await?.head;
    assert_eq!((found.revision, found.status), (revision, EntryStatus::Paused), "the holder sets them");
    assert_eq!(holder(&store, "a").await?.as_deref(), Some("h"));
    assert_eq!(taken(&store, &take("w", ["q"])).await?, [""; 0], "it is held");
    assert_held(&store.append(&queued_at("a", revision).by("w").taking([first.id])).await, "h");
    assert_waiting(&store, "a", &[&first]).await?;
    let at = store.append(&queued_at("a", revision).part("1").by("h").taking([first.id])).await?;
    assert_entry(&store, "a", at, &[b"1"]).await?;
    assert_waiting(&store, "a", &[]).await?;
    assert_eq!(taken(&store, &take("w", ["q"])).await?, [""; 0], "nothing is left to do");

    // A post gives an entry a queue, which it keeps.
    let revision = store.append(&running("b", Revision::NONE, "1").by("h").holding(LONG)).await?;
    let first = Post::new("1").queue("q");
    keep(&store, "b", &first).await?;
    assert_eq!(load(&store, "b").await?.head.queue.as_deref(), Some("q"));
    let at = store.append(&running("b", revision, "2").by("h").taking([first.id])).await?;
    assert_entry(&store, "b", at, &[b"1", b"2"]).await?;
    assert_eq!(load(&store, "b").await?.head.queue.as_deref(), Some("q"), "an append without a queue");
    keep(&store, "b", &Post::new("2")).await?;
    assert_eq!(taken(&store, &take("w", ["q"])).await?, ["b"]);
    Ok(())
}

/// F2, F4
pub(super) async fn a_post_to_a_free_entry_changes_it_and_makes_it_due(store: Shared) -> Result<(), StoreError> {
    use EntryStatus as S;
    let table = [
        (S::Queued, S::Queued),
        (S::Running, S::Running),
        (S::Waiting, S::Waiting),
        (S::Paused, S::Queued),
        (S::Ended, S::Queued),
        (S::Failed, S::Queued),
    ];
    for (before, after) in table {
        let mut append = queued(before.as_str(), "q").due(LONG);
        append.head.status = before;
        let id = append.head.id.clone();
        let revision = store.append(&append).await?;
        let post = Post::new("1").queue("q");
        keep(&store, &id, &post).await?;
        let found = load(&store, &id).await?.head;
        assert!(found.revision > revision, "{before:?}: {found:?}");
        assert_eq!((found.status, found.posts), (after, 1), "{before:?}");
        assert_conflict(&store.append(&queued_at(&id, revision)).await, revision, found.revision);
        assert_conflict(&store.remove(&id, revision).await, revision, found.revision);
        assert!(store.list(&Filter::of([after])).await?.contains(&found), "a list of {after:?}");
        let heads = store.take(&take("w", ["q"])).await?;
        let [head] = &*heads else { not_due(&id, heads.len()) };
        assert_eq!((&head.id, head.status, head.posts, head.queue.as_deref()), (&id, after, 1, Some("q")));
        // The head that is stored now says what its author says.
        let at = store.append(&Append::new(head.clone()).by("w").taking([post.id])).await?;
        assert_eq!(load(&store, &id).await?.head.status, after);
        store.remove(&id, at).await?;
    }

    // Only a post that names the queue is new work.
    let mut failed = queued("failed", "q");
    failed.head.status = S::Failed;
    store.append(&failed).await?;
    keep(&store, "failed", &Post::new("1")).await?;
    assert_eq!(load(&store, "failed").await?.head.status, S::Failed);
    assert_eq!(taken(&store, &take("w", ["q"])).await?, ["failed"]);

    // Without a queue, nobody is to go on.
    let revision = store.append(&Append::new(head("a", S::Ended, Revision::NONE))).await?;
    keep(&store, "a", &Post::new("1")).await?;
    let found = load(&store, "a").await?.head;
    assert!(found.revision > revision && found.status == S::Ended && found.queue.is_none(), "{found:?}");
    keep(&store, "a", &Post::new("2").queue("q")).await?;
    assert_eq!(taken(&store, &take("w", ["q"])).await?, ["a"], "the post has the queue");

    // An entry that is due keeps its place.
    for id in ["first", "second"] {
        store.append(&queued(id, "r").due(Duration::ZERO)).await?;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    keep(&store, "first", &Post::new("1")).await?;
    assert_eq!(taken(&store, &take("w", ["r"])).await?, ["first", "second"]);
    Ok(())
}

#[expect(clippy::panic, reason = "this is a test")]
fn not_due(id: &str, found: usize) -> ! {
    panic!("the entry `{id}` is due, and {found} entries were taken")
}

/// S5
pub(super) async fn a_post_that_breaks_a_limit_is_refused(store: Shared) -> Result<(), StoreError> {
    let revision = held_by(&store, "a", "h").await?;
    let long = "é".repeat(MAX_ID_BYTES / 2);
    for (what, name) in [("an empty name", ""), ("a long name", &format!("{long}x")), ("a control character", "a\nb")] {
        assert_invalid(&store.post(name, &Post::new("1")).await, what);
        assert_invalid(&store.posts(name).await, what);
        assert_invalid(&store.post("a", &Post::new("1").key(name)).await, what);
        assert_invalid(&store.post("a", &Post::new("1").queue(name)).await, what);
    }
    assert_invalid(&store.post("a", &Post::new(vec![b'x'; MAX_PART_BYTES + 1])).await, "a long body");
    let other_queue = Post::new("1").queue("r").key("question");
    assert_invalid(&store.post("a", &other_queue).await, "a post to an entry of another queue");
    assert_waiting(&store, "a", &[]).await?;

    let largest = Post::new(vec![b'x'; MAX_PART_BYTES]).key(&*long);
    keep(&store, "a", &largest.clone().queue("q")).await?;
    let others: Vec<_> = (1..MAX_POSTS).map(|n| Post::new(n.to_string())).collect();
    for others in others.chunks(100) {
        try_join_all(others.iter().map(|post| keep(&store, "a", post))).await?;
    }
    let more = Post::new("more");
    assert!(matches!(store.post("a", &more).await, Err(StoreError::Full { .. })), "{MAX_POSTS} posts wait");
    keep(&store, "a", &others[0]).await?;
    let refused = store.post("a", &Post::new("").key(&*long)).await?;
    assert!(matches!(&refused, Posted::Refused(first) if first.id == largest.id), "{refused:?}");
    store.append(&queued_at("a", revision).by("h").holding(LONG).taking([others[9].id])).await?;
    keep(&store, "a", &more).await?;
    let waiting = store.posts("a").await?;
    assert_eq!(waiting.len(), MAX_POSTS);
    assert_eq!([&waiting[0], &waiting[MAX_POSTS - 1]], [&largest, &more]);
    Ok(())
}

/// F4
pub(super) async fn a_release_that_leaves_posts_is_not_the_last_change(store: Shared) -> Result<(), StoreError> {
    let mut revision = held_by(&store, "a", "h").await?;
    let [first, second] = ["1", "2"].map(Post::new);
    keep(&store, "a", &first).await?;
    keep(&store, "a", &second).await?;
    // The holder goes on, and knows the revision.
    revision = store.append(&queued_at("a", revision).by("h").holding(LONG)).await?;
    assert_eq!(load(&store, "a").await?.head.revision, revision);
    let release = queued_at("a", revision).by("h").due(LONG).taking([first.id]);
    revision = store.append(&release).await?;
    assert_waiting(&store, "a", &[&second]).await?;
    let left = load(&store, "a").await?.head.revision;
    assert!(left > revision, "{left} of the release {revision}");
    assert_conflict(&store.append(&queued_at("a", revision).by("h")).await, revision, left);
    let heads = store.take(&take("w", ["q"])).await?;
    let [head] = &*heads else { not_due("a", heads.len()) };
    assert_eq!((&*head.id, head.posts), ("a", 1));
    revision = store.append(&Append::new(head.clone()).by("w").taking([second.id])).await?;
    assert_eq!(load(&store, "a").await?.head.revision, revision, "a release that leaves nothing");
    assert_eq!(taken(&store, &take("w", ["q"])).await?, [""; 0]);

    revision = store.append(&running("b", Revision::NONE, "1").by("h").holding(LONG)).await?;
    keep(&store, "b", &first).await?;
    revision = store.append(&running("b", revision, "2").by("h")).await?;
    let left = load(&store, "b").await?.head;
    assert!(left.revision > revision && left.queue.is_none(), "{left:?}");
    assert_conflict(&store.append(&running("b", revision, "3")).await, revision, left.revision);
    assert_entry(&store, "b", left.revision, &[b"1", b"2"]).await
}

/// F4
pub(super) async fn a_removed_entry_forgets_its_posts(store: Shared) -> Result<(), StoreError> {
    let [taken, waiting] = ["1", "2"].map(|key| Post::new(key).key(key));
    for n in 0..3 {
        let mut revision = held_by(&store, "a", "h").await?;
        assert_waiting(&store, "a", &[]).await?;
        keep(&store, "a", &taken).await?;
        keep(&store, "a", &waiting).await?;
        assert_waiting(&store, "a", &[&taken, &waiting]).await?;
        revision = store.append(&queued_at("a", revision).by("h").holding(LONG).taking([taken.id])).await?;
        assert_waiting(&store, "a", &[&waiting]).await?;
        store.remove("a", revision).await?;
        assert_eq!(store.posts("a").await?, [], "removed for the time {n}");
        assert_conflict(&store.post("a", &waiting).await, Revision::NONE, Revision::NONE);
    }
    Ok(())
}

/// F1, F2
pub(super) async fn an_entry_whose_lease_is_over_is_due_for_its_posts(store: Shared) -> Result<(), StoreError> {
    for goes_on in [true, false] {
        let id = if goes_on { "a" } else { "b" };
        let mut held = queued(id, "q").by("h").holding(SHORT);
        held.head.status = EntryStatus::Failed;
        let revision = store.append(&held).await?;
        released(&store, id).await?;
        let post = Post::new("1");
        keep(&store, id, &post.clone().queue("q")).await?;
        let found = load(&store, id).await?.head;
        assert!(found.revision > revision, "a free entry: {found:?}");
        assert_eq!((found.status, found.holder), (EntryStatus::Queued, None));
        if goes_on {
            // The process that held it has to learn of the post.
            assert_conflict(&store.append(&queued_at(id, revision).by("h")).await, revision, found.revision);
            store.append(&queued_at(id, found.revision).by("h").taking([post.id])).await?;
        } else {
            assert_eq!(taken(&store, &take("w", ["q"])).await?, [id]);
            assert_held(&store.append(&queued_at(id, revision).by("h")).await, "w");
            assert_waiting(&store, id, &[&post]).await?;
        }
    }
    Ok(())
}
