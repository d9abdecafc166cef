//! A store in memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::mem::take;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_core::future::BoxFuture;
use parking_lot::Mutex;
use uuid::Uuid;

use super::{
    Append, Entry, EntryHead, EntryStatus, Filter, Holder, LONGEST, MAX_POSTS, Post, Posted, Revision, Store,
    StoreError, StoreId, Take, Wakes, WorkerHead, check_id,
};

/// A [`Store`] in memory. Clones share the entries, and nothing is kept when the last clone is dropped.
#[derive(Clone)]
pub struct MemoryStore {
    id: StoreId,
    state: Arc<Mutex<State>>,
    wakes: Wakes,
}

#[derive(Default)]
struct State {
    /// The last revision of any entry: the revisions of an id also grow if its entry was removed.
    last: u64,
    entries: BTreeMap<Arc<str>, Stored>,
    /// The ids of the entries by status. A list passes no entries of other statuses.
    by_status: BTreeSet<(EntryStatus, Arc<str>)>,
    /// The ids of the entries that have a queue, by their queue and by when they are due.
    by_due: BTreeSet<(String, SystemTime, Arc<str>)>,
    /// The queues of workers, and how long they are listed, by their names.
    workers: BTreeMap<String, (Vec<String>, SystemTime)>,
}

struct Stored {
    /// The head, with the last holder.
    head: Arc<EntryHead>,
    due: Option<SystemTime>,
    parts: Vec<Bytes>,
    /// The parts that are hidden.
    older: Vec<Bytes>,
    /// The revision of the last append that has hidden or replaced parts.
    whole: Revision,
    last_append: Uuid,
    posts: Posts,
}

/// The posts of an entry.
#[derive(Default)]
struct Posts {
    waiting: VecDeque<Post>,
    /// The ids and keys of all posts so far.
    ids: BTreeSet<Uuid>,
    keys: BTreeMap<String, Uuid>,
}

impl MemoryStore {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self { id: StoreId::new(), state: Arc::default(), wakes: Wakes::new() }
    }

    /// Wakes the holder of an entry that was changed, or the workers of its queue.
    fn wake(&self, id: &str) {
        let now = SystemTime::now();
        let state = self.state.lock();
        let Some(stored) = state.entries.get(id) else { return };
        let is_held = stored.holder(now).is_some();
        let queue = stored.head.queue.clone().filter(|_| stored.due.is_some_and(|due| due <= now));
        drop(state);
        match queue {
            _ if is_held => self.wakes.posted(id),
            Some(queue) => self.wakes.due(&queue),
            None => {}
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// Returns an error if another process holds an entry.
    fn check_holder(&self, id: &str, by: &str, now: SystemTime) -> Result<(), StoreError> {
        match self.entries.get(id).and_then(|stored| stored.holder(now)) {
            Some(holder) if holder.by != by => Err(StoreError::Held { id: id.to_owned(), holder: holder.clone() }),
            _ => Ok(()),
        }
    }

    fn check_revision(&self, id: &str, after: Revision) -> Result<(), StoreError> {
        let current = self.entries.get(id).map_or(Revision::NONE, |stored| stored.head.revision);
        if current == after { Ok(()) } else { Err(StoreError::Conflict { id: id.to_owned(), after, current }) }
    }

    /// Applies an append. The head and the parts that were replaced are moved into `replaced`, to be dropped after the
    /// lock.
    fn append(&mut self, append: &Append, replaced: &mut Option<Stored>) -> Result<Revision, StoreError> {
        let id = &*append.head.id;
        let now = SystemTime::now();
        match self.entries.get(id) {
            Some(stored) if stored.last_append == append.id && !stored.is_taken_from(append) => {
                return Ok(stored.head.revision);
            }
            _ => {
                self.check_holder(id, &append.by, now)?;
                self.check_revision(id, append.head.revision)?;
            }
        }
        let revision = self.next_revision();
        let (mut parts, mut older, mut whole) = (append.parts.clone(), Vec::new(), revision);
        let mut posts = Posts::default();
        let mut queue = append.head.queue.clone();
        *replaced = self.take(id);
        if let Some(before) = replaced.as_mut() {
            posts = take(&mut before.posts);
            queue = queue.or_else(|| before.head.queue.clone());
            match (append.replaces, append.hides_older) {
                (false, false) => {
                    before.parts.append(&mut parts);
                    (parts, older, whole) = (take(&mut before.parts), take(&mut before.older), before.whole);
                }
                (false, true) => {
                    older = take(&mut before.older);
                    older.append(&mut before.parts);
                }
                (true, true) => older = take(&mut before.parts),
                (true, false) => {}
            }
        }
        let holder = append.lease.map(|lease| Holder { by: append.by.clone(), until: later(now, lease) });
        let mut due = holder.as_ref().map(|holder| holder.until).or_else(|| Some(later(now, append.due?)));
        posts.waiting.retain(|post| !append.takes.contains(&post.id));
        let mut at = revision;
        if holder.is_none() && !posts.waiting.is_empty() {
            at = self.next_revision();
            due = if queue.is_some() { Some(now) } else { due };
        }
        let head = EntryHead { revision: at, holder, queue, posts: posts.count(), ..append.head.clone() };
        self.put(id.into(), Stored { head: head.into(), due, parts, older, whole, last_append: append.id, posts });
        Ok(revision)
    }

    fn post(&mut self, id: &str, post: &Post) -> Result<Posted, StoreError> {
        let now = SystemTime::now();
        let Some(stored) = self.entries.get(id) else {
            return Err(StoreError::Conflict { id: id.to_owned(), after: Revision::NONE, current: Revision::NONE });
        };
        if let Some(known) = stored.known(id, post)? {
            return Ok(known);
        }
        let is_held = stored.holder(now).is_some();
        let revision = if is_held { stored.head.revision } else { self.next_revision() };
        let Some(mut stored) = self.take(id) else { return Ok(Posted::Kept) };
        stored.posts.add(post.clone());
        let mut head = Arc::unwrap_or_clone(stored.head);
        (head.revision, head.posts) = (revision, stored.posts.count());
        head.queue = head.queue.or_else(|| post.queue.clone());
        if !is_held && head.queue.is_some() {
            // Many posts do not move an entry behind others that are due.
            stored.due = Some(stored.due.map_or(now, |due| due.min(now)));
            if post.queue.is_some()
                && matches!(head.status, EntryStatus::Ended | EntryStatus::Failed | EntryStatus::Paused)
            {
                head.status = EntryStatus::Queued;
            }
        }
        stored.head = Arc::new(head);
        self.put(id.into(), stored);
        Ok(Posted::Kept)
    }

    fn next_revision(&mut self) -> Revision {
        self.last += 1;
        Revision::new(self.last)
    }

    fn put(&mut self, id: Arc<str>, stored: Stored) {
        self.by_status.insert((stored.head.status, Arc::clone(&id)));
        self.by_due.extend(stored.queued(&id));
        self.entries.insert(id, stored);
    }

    fn take(&mut self, id: &str) -> Option<Stored> {
        let (id, stored) = self.entries.remove_entry(id)?;
        if let Some(queued) = stored.queued(&id) {
            self.by_due.remove(&queued);
        }
        self.by_status.remove(&(stored.head.status, id));
        Some(stored)
    }

    /// Lets a worker hold the entries that are due.
    fn take_due(&mut self, take: &Take) -> Vec<EntryHead> {
        let now = SystemTime::now();
        let until = later(now, take.lease);
        self.workers.retain(|by, (_, until)| *until > now && *by != take.by);
        if !take.lease.is_zero() {
            self.workers.insert(take.by.clone(), (take.queues.clone(), until));
        }
        let mut ids = Vec::new();
        for queue in &take.queues {
            let queued = self.by_due.range((queue.clone(), SystemTime::UNIX_EPOCH, Arc::from(""))..);
            let due = queued.take_while(|(of, due, _)| of == queue && *due <= now).map(|(.., id)| Arc::clone(id));
            ids.extend(due.take(take.most - ids.len()));
        }
        let mut taken = Vec::new();
        for id in ids {
            let Some(mut stored) = self.take(&id) else { continue };
            let mut head = Arc::unwrap_or_clone(stored.head);
            head.revision = self.next_revision();
            head.attempts = head.attempts.saturating_add(1);
            head.holder = Some(Holder { by: take.by.clone(), until });
            taken.push(head.clone());
            (stored.head, stored.due) = (Arc::new(head), Some(until));
            self.put(id, stored);
        }
        taken
    }

    /// Returns the heads that a filter selects: at most `limit` of each status, of which the first are kept.
    fn list(&self, filter: &Filter) -> Vec<Arc<EntryHead>> {
        let after: Option<Arc<str>> = filter.after.as_deref().map(Into::into);
        let limit = filter.limit.unwrap_or(usize::MAX);
        let of_status = |&status: &EntryStatus| {
            let from = match &after {
                Some(after) => Bound::Excluded((status, Arc::clone(after))),
                None => Bound::Included((status, Arc::from(""))),
            };
            let ids = self.by_status.range((from, Bound::Unbounded));
            ids.take_while(move |(of, _)| *of == status).take(limit).map(|(_, id)| id)
        };
        let mut ids: Vec<_> = filter.statuses.iter().flat_map(of_status).collect();
        ids.sort_unstable();
        ids.truncate(limit);
        ids.into_iter().filter_map(|id| self.entries.get(id)).map(|stored| Arc::clone(&stored.head)).collect()
    }
}

impl Posts {
    fn add(&mut self, post: Post) {
        self.ids.insert(post.id);
        self.keys.extend(post.key.clone().map(|key| (key, post.id)));
        // The entry has the queue.
        self.waiting.push_back(Post { queue: None, ..post });
    }

    fn count(&self) -> u32 {
        self.waiting.len() as u32
    }

    /// Returns the first post with the key of another one.
    fn first(&self, post: &Post) -> Option<Post> {
        let key = post.key.as_ref()?;
        let id = *self.keys.get(key)?;
        let waiting = self.waiting.iter().find(|post| post.id == id).cloned();
        Some(waiting.unwrap_or_else(|| Post::new("").id(id).key(key)))
    }
}

impl Stored {
    /// Returns what becomes of a post that is not stored, because it is known, or its key is.
    fn known(&self, id: &str, post: &Post) -> Result<Option<Posted>, StoreError> {
        if self.posts.ids.contains(&post.id) {
            return Ok(Some(Posted::Kept));
        }
        if let Some(queue) =
            self.head.queue.as_deref().filter(|queue| post.queue.as_deref().is_some_and(|of| of != *queue))
        {
            return Err(post.other_queue(id, queue));
        }
        if let Some(first) = self.posts.first(post) {
            return Ok(Some(Posted::Refused(first)));
        }
        if self.posts.waiting.len() >= MAX_POSTS {
            return Err(StoreError::Full { id: id.to_owned() });
        }
        Ok(None)
    }

    /// Returns the process that holds the entry.
    fn holder(&self, now: SystemTime) -> Option<&Holder> {
        self.head.holder.as_ref().filter(|holder| holder.until > now)
    }

    /// Returns `true` if another process holds the entry, or has held it, since the append has let its author hold it.
    fn is_taken_from(&self, append: &Append) -> bool {
        append.lease.is_some() && self.head.holder.as_ref().is_some_and(|holder| holder.by != append.by)
    }

    /// Returns the entry's place in `State::by_due`.
    fn queued(&self, id: &Arc<str>) -> Option<(String, SystemTime, Arc<str>)> {
        Some((self.head.queue.clone()?, self.due?, Arc::clone(id)))
    }
}

/// Returns a head that is read, with the process that holds the entry now.
fn read(head: Arc<EntryHead>) -> EntryHead {
    let mut head = Arc::unwrap_or_clone(head);
    head.holder = head.holder.filter(|holder| holder.until > SystemTime::now());
    head
}

fn later(now: SystemTime, time: Duration) -> SystemTime {
    now + time.min(LONGEST)
}

impl Store for MemoryStore {
    fn store_id(&self) -> StoreId {
        self.id
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            check_id(id)?;
            let found =
                self.state.lock().entries.get(id).map(|stored| (Arc::clone(&stored.head), stored.parts.clone()));
            Ok(found.map(|(head, parts)| Entry::new(read(head), parts)))
        })
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            append.check()?;
            let mut replaced = None;
            let revision = self.state.lock().append(append, &mut replaced)?;
            if append.lease.is_none() {
                self.wake(&append.head.id);
            }
            Ok(revision)
        })
    }

    fn post<'a>(&'a self, id: &'a str, post: &'a Post) -> BoxFuture<'a, Result<Posted, StoreError>> {
        Box::pin(async move {
            post.check(id)?;
            let posted = self.state.lock().post(id, post)?;
            self.wake(id);
            Ok(posted)
        })
    }

    fn posts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<Post>, StoreError>> {
        Box::pin(async move {
            check_id(id)?;
            let state = self.state.lock();
            let posts = state.entries.get(id).map(|stored| stored.posts.waiting.iter().cloned().collect());
            Ok(posts.unwrap_or_default())
        })
    }

    fn older_parts<'a>(&'a self, id: &'a str, before: Revision) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        Box::pin(async move {
            check_id(id)?;
            let state = self.state.lock();
            match state.entries.get(id) {
                Some(stored) if stored.whole <= before => Ok(stored.older.clone()),
                stored => {
                    let current = stored.map_or(Revision::NONE, |stored| stored.head.revision);
                    Err(StoreError::Conflict { id: id.to_owned(), after: before, current })
                }
            }
        })
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        Box::pin(async move {
            let heads = self.state.lock().list(filter);
            Ok(heads.into_iter().map(read).collect())
        })
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        Box::pin(async move {
            take.check()?;
            Ok(self.state.lock().take_due(take))
        })
    }

    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerHead>, StoreError>> {
        Box::pin(async move {
            let now = SystemTime::now();
            let state = self.state.lock();
            let listed = state.workers.iter().filter(|(_, (_, until))| *until > now);
            Ok(listed.map(|(by, (queues, until))| WorkerHead::new(by.clone(), queues.clone(), *until)).collect())
        })
    }

    fn wakes(&self) -> Option<&Wakes> {
        Some(&self.wakes)
    }

    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            check_id(id)?;
            let mut state = self.state.lock();
            if state.entries.contains_key(id) {
                state.check_revision(id, after)?;
            }
            let removed = state.take(id);
            drop(state);
            drop(removed);
            Ok(())
        })
    }
}

/// Shows the number of entries, because entries may be secret.
impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("len", &self.state.lock().entries.len()).finish()
    }
}
