//! The members of objects that are being written, and their order.

use std::ops::Range;

/// The members of the objects that are open, innermost last.
#[derive(Debug, Default)]
pub(super) struct Members {
    open: Vec<Member>,
    /// The members of one object in order, before they take their place.
    sorted: Vec<u8>,
}

/// Where a member is in what was written: from the quote of its key on.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) start: usize,
    /// Behind its key, at the quote.
    pub(super) key_end: usize,
    /// Behind its comma.
    pub(super) end: usize,
}

impl Member {
    #[inline]
    fn key<'o>(&self, out: &'o [u8]) -> &'o [u8] {
        out.get(self.start + 1..self.key_end).unwrap_or_default()
    }

    const fn all(&self) -> Range<usize> {
        self.start..self.end
    }
}

impl Members {
    pub(super) const fn new() -> Self {
        Self { open: Vec::new(), sorted: Vec::new() }
    }

    pub(super) fn clear(&mut self) {
        self.open.clear();
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.open.len()
    }

    /// Adds a member to the innermost object, whose members are those from `first` on; tells whether it is in order.
    #[inline]
    pub(super) fn add(&mut self, first: usize, member: Member, out: &[u8]) -> bool {
        let last = self.open.get(first..).and_then(<[_]>::last);
        let is_later = last.is_none_or(|last| !is_before(member.key(out), last.key(out)));
        self.open.push(member);
        is_later
    }

    /// Forgets those of the innermost object.
    #[inline]
    pub(super) fn close(&mut self, first: usize) {
        self.open.truncate(first);
    }

    /// Brings those of the innermost object into order. Of two with the same key, the first stays the first.
    pub(super) fn sort(&mut self, first: usize, out: &mut [u8]) {
        let Self { open, sorted } = self;
        let members = open.get_mut(first..).unwrap_or_default();
        let start = members.first().map_or(0, |member| member.start);
        match members {
            [a, b] => std::mem::swap(a, b),
            _ => members.sort_by(|a, b| a.key(out).cmp(b.key(out))),
        }
        sorted.clear();
        for member in members {
            sorted.extend_from_slice(&out[member.all()]);
        }
        out[start..start + sorted.len()].copy_from_slice(sorted);
    }
}

/// Whether a key is before another one. Mostly, the first byte tells.
#[inline]
fn is_before(key: &[u8], other: &[u8]) -> bool {
    match (key.first(), other.first()) {
        (Some(a), Some(b)) if a != b => a < b,
        _ => key < other,
    }
}
