//! Posts as rows.

use emitree_middleware::store::{MAX_POSTS, Post, Posted, Revision, StoreError};
use tokio_postgres::types::Type;

use super::connections::{Call, Connections};
use super::entries::{get, one, unreadable};
use super::failure::Doing;
use super::schema::Schema;
use crate::shared::{PostRow, crc, waiting};

/// The calls of the functions for posts.
pub(super) struct Posts {
    post: String,
    posts: String,
}

impl Posts {
    pub(super) fn new(Schema { quoted, .. }: &Schema) -> Self {
        Self {
            post: format!("SELECT * FROM {quoted}.post_1($1, $2, $3, $4, $5, $6, $7)"),
            posts: format!("SELECT * FROM {quoted}.posts_1($1)"),
        }
    }

    /// Sends a post. It is repeated with its id, and then known.
    pub(super) async fn post(&self, connections: &Connections, id: &str, post: &Post) -> Result<Posted, StoreError> {
        let post_id = &post.id.as_bytes()[..];
        let body = &*post.body;
        let most = MAX_POSTS as i64;
        let values = &[
            (&id as _, Type::TEXT),
            (&post_id as _, Type::BYTEA),
            (&post.key as _, Type::TEXT),
            (&post.queue as _, Type::TEXT),
            (&body as _, Type::BYTEA),
            (&crc(body) as _, Type::INT8),
            (&most as _, Type::INT8),
        ];
        let call = Call { doing: Doing::Write, sql: &self.post, values, bytes: body.len() };
        let rows = connections.call(call).await?;
        let row = one(&rows)?;
        match get(row, 0)? {
            "kept" => Ok(Posted::Kept),
            "missing" => {
                let none = Revision::NONE;
                Err(StoreError::Conflict { id: id.to_owned(), after: none, current: none })
            }
            "queue" => Err(post.other_queue(id, get(row, 1)?)),
            "key" => {
                let first = PostRow { id: get(row, 2)?, key: post.key.clone(), body: get(row, 3)?, crc: get(row, 4)? };
                first.read(id).map(Posted::Refused)
            }
            "full" => Err(StoreError::Full { id: id.to_owned() }),
            outcome => Err(unreadable(format!("`{outcome}` is no outcome of a post"))),
        }
    }

    /// Reads the posts that wait.
    pub(super) async fn posts(&self, connections: &Connections, id: &str) -> Result<Vec<Post>, StoreError> {
        let values = &[(&id as _, Type::TEXT)];
        let rows = connections.call(Call { doing: Doing::Read, sql: &self.posts, values, bytes: 0 }).await?;
        let Some(first) = rows.first() else { return Ok(Vec::new()) };
        let count = get(first, 0)?;
        let mut posts = Vec::with_capacity(rows.len());
        for row in &rows {
            // An entry without posts has one row, in which they are null.
            if let Some(post) = get(row, 1)? {
                posts.push(PostRow { id: post, key: get(row, 2)?, body: get(row, 3)?, crc: get(row, 4)? });
            }
        }
        waiting(id, posts, count)
    }
}
