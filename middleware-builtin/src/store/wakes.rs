//! The tasks of this process that wait for changes of a store: [`Wakes`].

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The tasks of this process that wait for changes of a store: holders of entries wait for posts, and workers for work.
///
/// A store wakes them after a change, so that they need not wait until they look again, which they do each second. A wake
/// that is lost costs this second, and one too many costs one look. Clones are the same value.
#[derive(Clone, Default)]
pub struct Wakes(Arc<Mutex<HashMap<On, Vec<Arc<Notify>>>>>);

/// The change for which a watch waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum On {
    PostTo(String),
    WorkOf(String),
}

impl Wakes {
    /// Creates a value without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes the holder of an entry, to which a post was sent.
    pub fn posted(&self, id: &str) {
        self.wake(&On::PostTo(id.to_owned()));
    }

    /// Wakes the workers of a queue, in which an entry is due.
    pub fn due(&self, queue: &str) {
        self.wake(&On::WorkOf(queue.to_owned()));
    }

    /// Wakes all tasks, because it is unknown which changes were made.
    pub fn all(&self) {
        self.0.lock().values().flatten().for_each(|waits| waits.notify_one());
    }

    fn wake(&self, on: &On) {
        self.0.lock().get(on).into_iter().flatten().for_each(|waits| waits.notify_one());
    }

    /// Waits for posts to an entry.
    #[must_use]
    pub fn watch_posts(&self, id: &str) -> Watch {
        self.watch(vec![On::PostTo(id.to_owned())])
    }

    /// Waits for work in queues.
    #[must_use]
    pub fn watch_work<'a>(&self, queues: impl IntoIterator<Item = &'a str>) -> Watch {
        self.watch(queues.into_iter().map(|queue| On::WorkOf(queue.to_owned())).collect())
    }

    fn watch(&self, on: Vec<On>) -> Watch {
        let waits = Arc::new(Notify::new());
        let mut all = self.0.lock();
        for on in &on {
            all.entry(on.clone()).or_default().push(Arc::clone(&waits));
        }
        drop(all);
        Watch { wakes: self.clone(), on, waits }
    }
}

/// Shows the changes for which tasks wait.
impl fmt::Debug for Wakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.lock().keys()).finish()
    }
}

/// Waits for changes of a store, until it is dropped. Returned by [`Wakes::watch_posts`] and [`Wakes::watch_work`].
#[derive(Debug)]
pub struct Watch {
    wakes: Wakes,
    on: Vec<On>,
    waits: Arc<Notify>,
}

impl Watch {
    /// Waits until there was a change since the last wait, or since the watch was created.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no wake.
    pub async fn woken(&self) {
        self.waits.notified().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut all = self.wakes.0.lock();
        for on in &self.on {
            let Some(waiting) = all.get_mut(on) else { continue };
            waiting.retain(|waits| !Arc::ptr_eq(waits, &self.waits));
            if waiting.is_empty() {
                all.remove(on);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    fn is_woken(watch: &Watch) -> bool {
        pin!(watch.woken()).now_or_never().is_some()
    }

    #[test]
    fn a_watch_is_woken_by_what_it_waits_for_and_by_nothing_else() {
        let wakes = Wakes::new();
        let posts = wakes.watch_posts("a");
        let work = wakes.watch_work(["import", "a"]);
        wakes.posted("b");
        wakes.due("mail");
        assert_eq!([&posts, &work].map(is_woken), [false, false]);
        wakes.posted("a");
        wakes.posted("a");
        assert_eq!([&posts, &work].map(is_woken), [true, false]);
        wakes.due("a");
        assert_eq!([&posts, &work].map(is_woken), [false, true]);
        wakes.all();
        assert_eq!([&posts, &work].map(is_woken), [true, true]);
        drop((posts, work));
        assert_eq!(format!("{wakes:?}"), "{}");
    }
}
