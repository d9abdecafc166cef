//! The group ids that were set on an emitter after its creation, as a linked list that only grows. The list is read
//! without a lock, and its last id is the current group id.

use std::sync::{Arc, OnceLock};

#[derive(Default)]
pub(crate) struct GroupIds(OnceLock<Box<GroupLink>>);

struct GroupLink {
    id: Arc<str>,
    next: OnceLock<Box<Self>>,
}

impl GroupIds {
    pub(crate) fn id(&self) -> Option<&Arc<str>> {
        self.last().map(|last| &last.id)
    }

    pub(crate) fn add(&self, id: Arc<str>) {
        let mut link = Box::new(GroupLink { id, next: OnceLock::new() });
        // A `set` fails if another thread has added a link first: continue from that link.
        let mut end = self.last().map_or(&self.0, |last| &last.next);
        while let Err(back) = end.set(link) {
            link = back;
            end = end.get().map_or(end, |next| &next.next);
        }
    }

    fn last(&self) -> Option<&GroupLink> {
        let mut last = self.0.get()?;
        while let Some(next) = last.next.get() {
            last = next;
        }
        Some(last)
    }
}

/// Drops the list in a loop instead of by recursion.
impl Drop for GroupIds {
    fn drop(&mut self) {
        let mut link = self.0.take();
        while let Some(mut this) = link {
            link = this.next.take();
        }
    }
}
