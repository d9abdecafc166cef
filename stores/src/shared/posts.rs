//! Posts as rows.

use emitree_middleware::store::{Post, StoreError};
use uuid::Uuid;

use super::checksum::fault;

/// The row of a post.
pub(crate) struct PostRow {
    pub(crate) id: Vec<u8>,
    pub(crate) key: Option<String>,
    /// `None` once the post was taken.
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) crc: i64,
}

impl PostRow {
    /// Returns the post of an entry.
    pub(crate) fn read(self, entry: &str) -> Result<Post, StoreError> {
        let id = Uuid::from_slice(&self.id)
            .map_err(|error| StoreError::damaged(entry, format!("the id of a post cannot be read: {error}")))?;
        let mut post = Post::new("").id(id);
        post.key = self.key;
        if let Some(body) = self.body {
            if let Some(fault) = fault(&body, self.crc) {
                return Err(StoreError::damaged(entry, format!("its post {id} {fault}")));
            }
            post.body = body.into();
        }
        Ok(post)
    }
}

/// Returns the posts that wait in an entry. Those that are missing are noticed by their number.
pub(crate) fn waiting(entry: &str, rows: Vec<PostRow>, count: i64) -> Result<Vec<Post>, StoreError> {
    if i64::try_from(rows.len()) != Ok(count) {
        let problem = format!("it has {} of its {count} posts that wait", rows.len());
        return Err(StoreError::damaged(entry, problem));
    }
    rows.into_iter().map(|row| row.read(entry)).collect()
}
