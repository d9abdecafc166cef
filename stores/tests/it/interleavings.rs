//! All orders in which two workers, a zombie and a sender make their calls: an entry has at most one holder, its work
//! ends once, and no post is lost (S2, S3, F1, F3, F4, F7).

use std::collections::VecDeque;
use std::time::Duration;

use emitree_middleware::store::{
    Append, EntryHead, EntryStatus, MemoryStore, Post, Posted, Revision, Store, StoreError, Take,
};
use emitree_stores::SqliteStore;
use uuid::Uuid;

use super::place::Place;

/// A call of an actor.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// Takes the entry for a time. An actor that gets nothing makes no further calls.
    Take(Duration),
    /// Reads the posts, which the next append takes.
    Read,
    /// Appends a part, and holds the entry for a time.
    Record(Duration),
    /// Appends a part, and releases the entry.
    End,
    /// Sends the last append again, as if its reply was lost.
    Repeat,
    Post,
}

use Call::{End, Read, Record, Repeat};

/// The name of an actor, and its calls. An actor goes on after a refusal, as if it had not noticed.
type Script = (&'static str, &'static [Call]);

const LONG: Duration = Duration::from_secs(600);
/// The lease of a zombie: it is over at once.
const OVER: Duration = Duration::ZERO;

const WORKER: &[Call] = &[Call::Take(LONG), Read, Record(LONG), End];
const WITHOUT_RECORD: &[Call] = &[Call::Take(LONG), Read, End];
const ZOMBIE: &[Call] = &[Call::Take(OVER), Read, Record(OVER), End];
/// A zombie that holds the entry again, if nobody has changed it since.
const HOLDING_ZOMBIE: &[Call] = &[Call::Take(OVER), Record(LONG), End];
/// A worker and a zombie whose replies are lost.
const REPEATING: &[Call] = &[Call::Take(LONG), Read, End, Repeat];
const REPEATING_ZOMBIE: &[Call] = &[Call::Take(OVER), Record(OVER), Repeat, End, Repeat];

const SCENES: [&[Script]; 3] = [
    &[("v", WORKER), ("w", WORKER), ("zombie", ZOMBIE), ("sender", &[Call::Post])],
    &[("v", WITHOUT_RECORD), ("w", WITHOUT_RECORD), ("zombie", HOLDING_ZOMBIE), ("sender", &[Call::Post, Call::Post])],
    &[("v", REPEATING), ("w", WITHOUT_RECORD), ("zombie", REPEATING_ZOMBIE), ("sender", &[Call::Post])],
];

struct Actor {
    name: &'static str,
    calls: VecDeque<Call>,
    /// The head at the last revision that the actor knows.
    head: EntryHead,
    read: Vec<Uuid>,
    sent: Option<Append>,
}

/// One order of the calls: what the store has acknowledged.
struct Run<'a, S> {
    store: &'a S,
    /// The entry, and its queue.
    id: String,
    actors: Vec<Actor>,
    trace: Vec<(&'static str, Call)>,
    revision: Revision,
    last_append: Uuid,
    /// The process that has the last lease, and whether the lease runs.
    lease: Option<(&'static str, bool)>,
    attempts: u32,
    parts: Vec<String>,
    waiting: Vec<Uuid>,
    /// `true` if the last append was an end.
    has_ended: bool,
    ends: usize,
    /// The number of ends that are to be: one, and one for each time that posts have found the work ended.
    expected_ends: usize,
}

/// Shows the calls up to a failure.
impl<S> Drop for Run<'_, S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("after {:?}", self.trace);
        }
    }
}

impl<'a, S: Store> Run<'a, S> {
    async fn new(store: &'a S, id: String, scripts: &[Script]) -> Self {
        let mut head = EntryHead::new(&*id, "job");
        (head.status, head.queue) = (EntryStatus::Queued, Some(id.clone()));
        let actor = |&(name, calls): &Script| {
            let calls = calls.iter().copied().collect();
            Actor { name, calls, head: head.clone(), read: Vec::new(), sent: None }
        };
        let actors = scripts.iter().map(actor).collect();
        let submitted = Append::new(head).due(OVER);
        let revision = store.append(&submitted).await.expect("an entry");
        Self {
            store,
            id,
            actors,
            trace: Vec::new(),
            revision,
            last_append: submitted.id,
            lease: None,
            attempts: 0,
            parts: Vec::new(),
            waiting: Vec::new(),
            has_ended: false,
            ends: 0,
            expected_ends: 1,
        }
    }

    /// Returns the actors that have calls left.
    fn able(&self) -> Vec<usize> {
        (0..self.actors.len()).filter(|who| !self.actors[*who].calls.is_empty()).collect()
    }

    fn holder(&self) -> Option<&'static str> {
        self.lease.filter(|(_, runs)| *runs).map(|(by, _)| by)
    }

    /// Makes the next call of an actor, and compares its result, and the entry, with what was acknowledged before.
    async fn step(&mut self, who: usize) {
        let (name, call) = (self.actors[who].name, self.actors[who].calls.pop_front().expect("a call"));
        self.trace.push((name, call));
        let mut is_changed = false;
        match call {
            Call::Take(lease) => self.take(who, lease).await,
            Read => {
                let posts = self.store.posts(&self.id).await.expect("posts");
                self.actors[who].read = posts.iter().map(|post| post.id).collect();
            }
            Record(_) | End => {
                let actor = &mut self.actors[who];
                let mut append = Append::new(actor.head.clone()).by(name).part(format!("{name} {call:?}"));
                append.takes = std::mem::take(&mut actor.read);
                if let Record(lease) = call {
                    append = append.holding(lease);
                }
                is_changed = self.append(who, append).await;
            }
            Repeat => {
                let sent = self.actors[who].sent.clone().expect("an append");
                is_changed = self.append(who, sent).await;
            }
            Call::Post => {
                let post = Post::new(name);
                assert_eq!(self.store.post(&self.id, &post).await.expect("a post"), Posted::Kept);
                self.expected_ends += usize::from(self.has_ended && self.waiting.is_empty());
                self.waiting.push(post.id);
                // A post to a free entry is a change, so a process that does not know of it is refused (F4).
                is_changed = self.holder().is_none();
            }
        }
        self.check(is_changed).await;
    }

    /// F1: an entry is taken if nobody holds it, and it has work.
    async fn take(&mut self, who: usize, lease: Duration) {
        let name = self.actors[who].name;
        let mut heads = self.store.take(&Take::new(name, lease, [&*self.id])).await.expect("entries");
        let has_work = !self.has_ended || !self.waiting.is_empty();
        assert_eq!(heads.len(), usize::from(self.holder().is_none() && has_work), "held by {:?}", self.holder());
        let Some(head) = heads.pop() else { return self.actors[who].calls.clear() };
        assert!(head.revision > self.revision);
        self.attempts += 1;
        (self.revision, self.lease) = (head.revision, Some((name, lease > OVER)));
        self.actors[who].head = head;
    }

    /// S2, S3, F1: an append is stored if its author knows the last change, and nobody else holds the entry. Returns
    /// `true` if the entry has a newer revision than its author is told.
    async fn append(&mut self, who: usize, append: Append) -> bool {
        let name = self.actors[who].name;
        let other = self.holder().filter(|by| *by != name);
        let is_last = append.head.revision == self.revision;
        let keeps_lease = append.lease.is_none() || self.lease.is_some_and(|(by, _)| by == name);
        let is_repeated = append.id == self.last_append && keeps_lease;
        let mut leaves_posts = false;
        match self.store.append(&append).await {
            Ok(revision) if is_repeated => assert_eq!(revision, self.revision),
            Ok(revision) => {
                assert!(other.is_none() && is_last, "{append:?} at {}, held by {other:?}", self.revision);
                assert!(revision > self.revision, "{revision} after {}", self.revision);
                self.actors[who].head.revision = revision;
                self.revision = revision;
                leaves_posts = self.accepted(name, &append);
            }
            Err(StoreError::Held { holder, .. }) => assert!(!is_repeated && other == Some(&*holder.by), "{holder:?}"),
            Err(StoreError::Conflict { current, .. }) => {
                assert!(!is_repeated && other.is_none() && !is_last, "{append:?} at {}", self.revision);
                assert_eq!(current, self.revision);
            }
            Err(error) => panic!("{error}"),
        }
        self.actors[who].sent = Some(append);
        leaves_posts
    }

    /// Returns `true` if an append releases the entry, and leaves posts.
    fn accepted(&mut self, name: &'static str, append: &Append) -> bool {
        self.last_append = append.id;
        self.lease = append.lease.map(|lease| (name, lease > OVER));
        self.attempts = append.head.attempts;
        self.parts.extend(append.parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()));
        for id in &append.takes {
            let at = self.waiting.iter().position(|waiting| waiting == id);
            self.waiting.remove(at.expect("a post that no other append has taken"));
        }
        self.has_ended = append.lease.is_none();
        let leaves_posts = self.has_ended && !self.waiting.is_empty();
        self.ends += usize::from(self.has_ended);
        assert!(self.ends <= self.expected_ends, "the work ends once");
        self.expected_ends += usize::from(leaves_posts);
        leaves_posts
    }

    async fn check(&mut self, is_changed: bool) {
        let entry = self.store.load(&self.id).await.expect("loaded").expect("an entry");
        let head = entry.head;
        let parts: Vec<_> = entry.parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect();
        assert_eq!(head.holder.as_ref().map(|holder| &*holder.by), self.holder());
        assert_eq!((head.attempts, parts), (self.attempts, self.parts.clone()));
        let grows = head.revision > self.revision;
        assert!(if is_changed { grows } else { head.revision == self.revision }, "{} {grows}", self.revision);
        self.revision = head.revision;
        let posts = self.store.posts(&self.id).await.expect("posts");
        assert_eq!(posts.iter().map(|post| post.id).collect::<Vec<_>>(), self.waiting, "each post is taken once");
        assert_eq!(head.posts as usize, self.waiting.len());
    }

    /// F2: the work has ended, or somebody holds it, or the next worker takes it, also for posts.
    async fn finish(mut self) {
        let head = EntryHead::new(&*self.id, "job");
        let calls = [Call::Take(LONG)].into();
        self.actors.push(Actor { name: "next", calls, head, read: Vec::new(), sent: None });
        self.step(self.actors.len() - 1).await;
        let is_done = self.ends == self.expected_ends && self.waiting.is_empty();
        assert!(is_done || self.holder().is_some(), "{} of {} ends", self.ends, self.expected_ends);
    }
}

/// Makes the calls of a scene in all orders, on a store in memory, and returns the orders of the actors.
async fn all_orders(scripts: &[Script]) -> Vec<Vec<usize>> {
    let store = MemoryStore::new();
    let mut orders = Vec::new();
    // The actor that makes each call, counted among the actors with calls left, and the number of these.
    let mut choices: Vec<(usize, usize)> = Vec::new();
    loop {
        let mut run = Run::new(&store, format!("{}", orders.len()), scripts).await;
        let mut order = Vec::new();
        while let able @ [_, ..] = &*run.able() {
            if order.len() == choices.len() {
                choices.push((0, able.len()));
            }
            let who = able[choices[order.len()].0];
            order.push(who);
            run.step(who).await;
        }
        run.finish().await;
        orders.push(order);
        while choices.pop_if(|(choice, of)| *choice + 1 == *of).is_some() {}
        let Some((choice, _)) = choices.last_mut() else { return orders };
        *choice += 1;
    }
}

/// Makes the calls of a scene on another store, in orders that are spread over all.
async fn assert_some_orders(store: &impl Store, scripts: &[Script], orders: &[Vec<usize>]) {
    const SOME: usize = 25;
    for order in orders.iter().step_by(orders.len().div_ceil(SOME)) {
        let mut run = Run::new(store, format!("{order:?}"), scripts).await;
        for who in order {
            run.step(*who).await;
        }
        assert_eq!(run.able(), [0; 0], "other actors have gone on than with the store in memory");
        run.finish().await;
    }
}

#[tokio::test]
async fn in_each_order_of_calls_an_entry_has_one_holder_ends_once_and_keeps_its_posts() {
    let folder = tempfile::tempdir().expect("a folder");
    for scripts in SCENES {
        let orders = all_orders(scripts).await;
        assert!(orders.len() > 4_000, "{} orders", orders.len());
        // The orders need no disk.
        let path = folder.path().join(format!("{}.db", orders.len()));
        let file = SqliteStore::open_with(path, "PRAGMA synchronous = OFF").await.expect("a store");
        assert_some_orders(&file, scripts, &orders).await;
        if let Some(place) = Place::server() {
            assert_some_orders(&place.open().await, scripts, &orders).await;
        }
    }
}
