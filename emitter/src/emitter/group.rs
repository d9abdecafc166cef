//! The groups that an emitter was given later. They are read without a lock: ids are only added, and the last one counts.

use std::sync::{Arc, OnceLock};

#[derive(Default)]
pub(crate) struct Groups(OnceLock<Box<GroupLink>>);

struct GroupLink {
    id: Arc<str>,
    next: OnceLock<Box<Self>>,
}

impl Groups {
    pub(crate) fn id(&self) -> Option<&Arc<str>> {
        self.last().map(|last| &last.id)
    }

    pub(crate) fn add(&self, id: Arc<str>) {
        let mut link = Box::new(GroupLink { id, next: OnceLock::new() });
        let mut end = self.last().map_or(&self.0, |last| &last.next);
        // Somebody else may add one at the same time.
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

/// Link by link, not by recursion.
impl Drop for Groups {
    fn drop(&mut self) {
        let mut link = self.0.take();
        while let Some(mut this) = link {
            link = this.next.take();
        }
    }
}
