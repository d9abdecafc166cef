//! Values under keys as rows.

use emitree_middleware::store::StoreError;
use emitree_middleware::values::ValueKey;
use tokio_postgres::types::Type;

use super::connections::{Call, Connections};
use super::entries::get;
use super::failure::Doing;
use super::schema::Schema;
use crate::shared::{ESCAPE, Text, crc, decode, encode};

/// The maximum length of a key as bytes. The index of the table takes no longer ones.
const MAX_KEY_BYTES: usize = 2_600;

/// The calls of the functions for values.
pub(super) struct Values {
    read: String,
    write: String,
    remove: String,
    keys: String,
}

impl Values {
    pub(super) fn new(Schema { quoted, .. }: &Schema) -> Self {
        Self {
            read: format!("SELECT * FROM {quoted}.read_value_1($1)"),
            write: format!("SELECT {quoted}.write_value_1($1, $2, $3)"),
            remove: format!("SELECT {quoted}.remove_value_1($1)"),
            keys: format!("SELECT {quoted}.value_keys_1($1, $2)"),
        }
    }

    pub(super) async fn read(&self, connections: &Connections, key: &ValueKey) -> Result<Option<Text>, StoreError> {
        let values = &[(&encode(key) as _, Type::BYTEA)];
        let rows = connections.call(Call { doing: Doing::Read, sql: &self.read, values, bytes: 0 }).await?;
        rows.first().map(|row| Ok((get(row, 0)?, get(row, 1)?))).transpose()
    }

    pub(super) async fn write(&self, connections: &Connections, key: &ValueKey, json: &str) -> Result<(), StoreError> {
        let bytes = encode(key);
        if bytes.len() > MAX_KEY_BYTES {
            let problem = format!("it has {} bytes, and at most {MAX_KEY_BYTES} are allowed", bytes.len());
            return Err(StoreError::failed(format!("the value of {key} cannot be stored"), problem));
        }
        let values = &[(&bytes as _, Type::BYTEA), (&json as _, Type::TEXT), (&crc(json.as_bytes()) as _, Type::INT8)];
        let call = Call { doing: Doing::Write, sql: &self.write, values, bytes: json.len() };
        connections.call(call).await.map(drop)
    }

    pub(super) async fn remove(&self, connections: &Connections, key: &ValueKey) -> Result<(), StoreError> {
        let values = &[(&encode(key) as _, Type::BYTEA)];
        let call = Call { doing: Doing::Write, sql: &self.remove, values, bytes: 0 };
        connections.call(call).await.map(drop)
    }

    /// Returns the keys that begin with another key, or all keys.
    pub(super) async fn keys(
        &self,
        connections: &Connections,
        prefix: Option<&ValueKey>,
    ) -> Result<Vec<ValueKey>, StoreError> {
        let beginning = prefix.map(encode).unwrap_or_default();
        let ending = [&*beginning, &[ESCAPE]].concat();
        let values = &[(&beginning as _, Type::BYTEA), (&ending as _, Type::BYTEA)];
        let rows = connections.call(Call { doing: Doing::Read, sql: &self.keys, values, bytes: 0 }).await?;
        let damaged = |key: &[u8]| StoreError::damaged("value", format!("it has the key {key:?}, which is none"));
        let key = |key: &[u8]| decode(key).ok_or_else(|| damaged(key));
        rows.iter().map(|row| get(row, 0).and_then(key)).collect()
    }
}
