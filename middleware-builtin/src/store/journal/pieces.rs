//! Parts of any length: cut into pieces that a store accepts, and joined again.
//!
//! A piece of exactly [`MAX_PART_BYTES`] is continued by the next one. So a part whose length is a multiple of it ends
//! with an empty piece.

use std::iter;

use bytes::{Bytes, BytesMut};

use crate::store::{Entry, MAX_PART_BYTES, StoreError};

/// Cuts a part into pieces.
pub(super) fn cut(part: Bytes) -> impl Iterator<Item = Bytes> {
    let mut rest = Some(part);
    iter::from_fn(move || {
        let mut piece = rest.take()?;
        if piece.len() >= MAX_PART_BYTES {
            rest = Some(piece.split_off(MAX_PART_BYTES));
        }
        Some(piece)
    })
}

/// Returns the parts of an entry as they were in the [`Change`](super::Change)s since the parts were last replaced.
///
/// # Errors
///
/// Returns [`StoreError::Damaged`] if the end of the last part is missing.
pub fn joined_parts(entry: &Entry) -> Result<Vec<Bytes>, StoreError> {
    let mut parts = Vec::with_capacity(entry.parts.len());
    let mut begun = BytesMut::new();
    for piece in &entry.parts {
        match (piece.len() == MAX_PART_BYTES, begun.is_empty()) {
            (true, _) => begun.extend_from_slice(piece),
            (false, true) => parts.push(piece.clone()),
            (false, false) => {
                begun.extend_from_slice(piece);
                parts.push(begun.split().freeze());
            }
        }
    }
    if begun.is_empty() {
        return Ok(parts);
    }
    Err(StoreError::damaged(&entry.head.id, "the end of its last part is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::EntryHead;

    #[test]
    fn parts_of_any_length_are_cut_and_joined() {
        let part = |bytes: usize| Bytes::from(vec![b'x'; bytes]);
        let parts = [0, 1, MAX_PART_BYTES - 1, MAX_PART_BYTES, MAX_PART_BYTES + 1, 0, 3 * MAX_PART_BYTES].map(part);
        let pieces: Vec<_> = parts.iter().cloned().flat_map(cut).collect();
        assert!(pieces.iter().all(|piece| piece.len() <= MAX_PART_BYTES));
        assert_eq!(pieces.len(), 1 + 1 + 1 + 2 + 2 + 1 + 4);

        let mut entry = Entry::new(EntryHead::new("a", "job"), pieces);
        assert!(joined_parts(&entry).is_ok_and(|joined| joined == parts));
        entry.parts.pop();
        let error = joined_parts(&entry).expect_err("an end is missing").to_string();
        assert_eq!(error, "the stored entry `a` is damaged: the end of its last part is missing");
    }
}
