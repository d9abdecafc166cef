//! Values under keys that are damaged.

use emitree_middleware::values::{KeyValues, ValueKey};
use serde_json::json;

use super::{new_path, open};

#[tokio::test]
async fn a_damaged_value_is_an_error_that_names_its_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = new_path(&folder);
    let store = open(&path).await;
    let a = ValueKey::new(["a"]).expect("a key");
    store.write(&a, &json!([1])).await.expect("written");

    let damage = "UPDATE value SET json = '[1'";
    rusqlite::Connection::open(&path).and_then(|db| db.execute(damage, [])).expect("a damage");
    let error = store.read(&a).await.expect_err("damaged").explain();
    assert!(error.starts_with(r#"the value of ["a"] is damaged"#), "{error}");
    let damage = "UPDATE value SET key = x'ff'";
    rusqlite::Connection::open(&path).and_then(|db| db.execute(damage, [])).expect("a damage");
    assert_eq!(store.keys(None).await.expect("the keys with this byte are not in the range"), []);
}
