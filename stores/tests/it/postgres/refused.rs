//! Servers, databases and schemas that cannot be used. Each error quotes its cause, and nothing is changed.

use std::error::Error;

use emitree_middleware::store::{Append, EntryHead, Filter, Revision, Store, StoreError};
use emitree_middleware::values::{KeyValues, ValueKey};
use emitree_stores::{ConnectPostgres, PostgresStore};
use futures_util::future::try_join_all;
use serde_json::json;

use super::proxy::Proxy;
use super::server::{
    Own, admin, connect, database, database_of, new_name, schema_of, shared, store, with_database, with_user,
};
use crate::sqlite::failures::{DAMAGES, POST_DAMAGES, assert_damaged_posts, post_to_two};

/// Returns the message and the cause of a connection that must fail.
async fn refused(connect: ConnectPostgres) -> (String, String) {
    let error = connect.await.expect_err("it must be refused");
    assert!(matches!(error, StoreError::Failed { .. }), "{error:?}");
    (error.to_string(), error.source().map(ToString::to_string).unwrap_or_default())
}

async fn assert_refused(connect: ConnectPostgres, message: &str, cause: &str) {
    let (found, found_cause) = refused(connect).await;
    assert!(found.contains(message), "{found}");
    assert!(found_cause.contains(cause), "{found_cause}");
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_an_error_with_a_remedy() {
    let Some(url) = shared() else { return };
    let nowhere = connect("postgres://app:secret@localhost:1/app");
    let message = "`postgres://app@localhost:1/app` cannot be connected to: start the server, or correct the host";
    assert_refused(nowhere, message, "refused").await;
    let message = "cannot be connected to: create the database, or name another";
    assert_refused(connect(&with_database(&url, "nowhere")), message, "database \"nowhere\" does not exist").await;
    let message = "cannot be connected to: correct the user or the password";
    assert_refused(connect(&with_user(&url, "nobody")), message, "role \"nobody\" does not exist").await;
}

#[tokio::test]
async fn a_database_without_utf8_is_refused() {
    let Some(url) = shared() else { return };
    let url = database(&url, "ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'").await;
    let cause = "its database has the encoding SQL_ASCII: create a database with `ENCODING 'UTF8'`";
    assert_refused(connect(&url), "cannot be connected to", cause).await;
}

#[tokio::test]
async fn a_server_of_version_12_is_refused() {
    let Some(url) = shared() else { return };
    let proxy = Proxy::rewriting(&url, b"server_version\x0015", b"server_version\x0012").await;
    let cause = "it has the version `12";
    assert_refused(connect(&proxy.url), "cannot be connected to", cause).await;
}

#[tokio::test]
async fn a_server_that_loses_data_is_refused_unless_that_is_allowed() {
    let Some(own) = Own::start(&["fsync=off"]) else { return };
    let cause = "it has `fsync=off`, so a crash loses what was stored: switch it on, or call `allow_data_loss`";
    assert_refused(connect(&own.url), "cannot be connected to", cause).await;
    connect(&own.url).allow_data_loss().await.expect("a store");
}

#[tokio::test]
async fn a_standby_is_refused() {
    let Some(own) = Own::start(&[]) else { return };
    own.become_standby();
    let message = "cannot be connected to: name the primary server";
    assert_refused(connect(&own.url), message, "the server is a standby").await;
}

#[tokio::test]
async fn a_schema_of_another_program_or_a_newer_version_is_refused_and_stays_as_it_was() {
    let Some(url) = shared() else { return };
    let admin = admin(&url).await;
    let (other, both, newer) = (new_name("other"), new_name("both"), new_name("newer"));
    let mut sql = format!("CREATE SCHEMA {other}; CREATE TABLE {other}.entry (song text); CREATE SCHEMA {both};");
    for table in ["entry", "format", "part", "value"] {
        sql += &format!("CREATE TABLE {both}.{table} (version text);");
    }
    admin.batch_execute(&sql).await.expect("tables");
    drop(PostgresStore::connect(&url).schema(&newer).await.expect("a store"));
    admin.batch_execute(&format!("UPDATE {newer}.format SET version = 3")).await.expect("a version");
    let table = [
        (&other, "has tables of another program (`entry`): name another schema"),
        (&both, "has tables of another program (`entry`, `format`, `part`, `value`): name another schema"),
        (&newer, "has the format 3, and this version reads format 2: use the version of emitree that has changed it"),
    ];
    for (schema, problem) in table {
        let count =
            "SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE nspname = $1";
        let before: i64 = admin.query_one(count, &[schema]).await.expect("a count").get(0);
        let problem = format!("its schema `{schema}` {problem}");
        assert_refused(PostgresStore::connect(&url).schema(schema), "cannot be connected to", &problem).await;
        let after: i64 = admin.query_one(count, &[schema]).await.expect("a count").get(0);
        assert_eq!(before, after, "{problem}");
    }
}

#[tokio::test]
async fn a_store_that_does_not_manage_its_schema_creates_nothing() {
    let Some(url) = shared() else { return };
    let (admin, schema) = (admin(&url).await, new_name("managed"));
    let connect = || PostgresStore::connect(&url).schema(&schema).manage_schema(false);
    let cause = format!("its schema `{schema}` has no tables of a store: execute the SQL of `PostgresStore::schema`");
    assert_refused(connect(), "cannot be connected to", &cause).await;
    let count = "SELECT count(*) FROM pg_namespace WHERE nspname = $1";
    assert_eq!(admin.query_one(count, &[&schema]).await.expect("a count").get::<_, i64>(0), 0);
    admin.batch_execute(&PostgresStore::schema(&schema, "postgres").expect("SQL")).await.expect("a schema");
    admin.batch_execute(&format!("UPDATE {schema}.format SET version = 0")).await.expect("a version");
    let cause = format!("its schema `{schema}` has the format 0, and this version needs 2");
    assert_refused(connect(), "cannot be connected to", &cause).await;
}

#[tokio::test]
async fn a_role_without_rights_is_told_which_sql_lists_them() {
    let Some(url) = shared() else { return };
    let (url, role, schema) = (database(&url, "").await, new_name("role"), new_name("rights"));
    let admin = admin(&url).await;
    admin.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.expect("a role");
    let as_role = PostgresStore::connect(with_user(&url, &role)).schema(&schema);
    let message = "cannot be connected to: give the role the rights that `PostgresStore::schema` lists";
    assert_refused(as_role.clone(), message, "permission denied for database").await;
    admin.batch_execute(&PostgresStore::schema(&schema, &role).expect("SQL")).await.expect("a schema");
    let store = as_role.await.expect("the schema is there, and nothing has to be created");
    admin.batch_execute(&format!("REVOKE INSERT ON {schema}.part FROM {role}")).await.expect("revoked");
    let append = Append::new(EntryHead::new("a", "job")).part("1");
    let error = store.append(&append).await.expect_err("no right");
    assert!(error.to_string().contains("cannot be written: give the role the rights"), "{error}");
    assert_eq!(error.source().expect("a cause").to_string(), "ERROR: permission denied for table part");
    assert_eq!(store.load("a").await.expect("loaded"), None);
}

#[tokio::test]
async fn a_role_that_may_not_create_a_schema_creates_tables_in_its_own() {
    let Some(url) = shared() else { return };
    let (url, role, schema) = (database(&url, "").await, new_name("role"), new_name("own"));
    let sql = format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA {schema} AUTHORIZATION {role}");
    admin(&url).await.batch_execute(&sql).await.expect("a role");
    let store = PostgresStore::connect(with_user(&url, &role)).schema(&schema).await.expect("a store");
    store.append(&Append::new(EntryHead::new("a", "job"))).await.expect("stored");
}

#[tokio::test]
async fn stores_that_create_a_schema_at_once_share_its_entries() {
    let Some(url) = shared() else { return };
    for level in ["read committed", "serializable"] {
        let url = database(&url, "").await;
        let set = format!("ALTER DATABASE {} SET default_transaction_isolation = '{level}'", database_of(&url));
        admin(&url).await.batch_execute(&set).await.expect("a level");
        let stores = try_join_all((0..8).map(|_| PostgresStore::connect(&url).into_future())).await.expect("stores");
        for (n, store) in stores.iter().enumerate() {
            let append = Append::new(EntryHead::new(n.to_string(), "job"));
            store.append(&append).await.expect("stored");
        }
        for store in &stores {
            assert_eq!(store.list(&Filter::unfinished()).await.expect("a list").len(), 8);
        }
    }
}

/// S5
#[tokio::test]
async fn an_entry_that_is_damaged_is_an_error_and_others_are_read() {
    let Some(url) = shared() else { return };
    let admin = admin(&url).await;
    for (damage, expected) in DAMAGES {
        let store = store(&url).await;
        let id = if damage.contains("'x'") { "x" } else { "a" };
        let damaged = Append::new(EntryHead::new(id, "job")).part("first").part("second").part("third");
        for append in [damaged, Append::new(EntryHead::new("b", "job")).part("other")] {
            store.append(&append).await.expect("stored");
        }
        let set = format!("SET search_path = {}; {damage}", schema_of(&store));
        admin.batch_execute(&set).await.expect("a damage");
        let error = store.load("a").await.expect_err("damaged").to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(store.load("b").await.expect("loaded").is_some());
        if !damage.contains("part") {
            assert_eq!(store.list(&Filter::unfinished()).await.expect_err("damaged").to_string(), error);
        }
    }
}

/// S5, S11
#[tokio::test]
async fn a_hidden_part_that_is_damaged_is_an_error_and_the_others_are_read() {
    let Some(url) = shared() else { return };
    let (store, admin) = (store(&url).await, admin(&url).await);
    let first = store.append(&Append::new(EntryHead::new("a", "job")).part("1").part("2")).await.expect("stored");
    let mut head = EntryHead::new("a", "job");
    head.revision = first;
    let second = store.append(&Append::new(head).part("3").hiding()).await.expect("stored");
    let delete = format!("DELETE FROM {}.part WHERE bytes = '1'", schema_of(&store));
    admin.batch_execute(&delete).await.expect("a damage");
    let error = store.older_parts("a", second).await.expect_err("damaged").to_string();
    assert_eq!(error, "the stored entry `a` is damaged: of its older parts, it has 1 of its 2 parts");
    assert_eq!(store.load("a").await.expect("loaded").expect("an entry").parts.len(), 1);
}

#[tokio::test]
async fn a_key_that_is_too_long_for_the_index_is_refused_and_a_value_may_be_large() {
    let Some(url) = shared() else { return };
    let store = store(&url).await;
    let key = |length: usize| ValueKey::new(["é".repeat(length)]).expect("a key");
    let value = json!({"text": "x".repeat(2_000_000), "größe": [1.5, null, u64::MAX, -0.1, 1e300, "\0\u{1f600}"]});
    // Random letters, which the database cannot compress.
    let longest = ValueKey::new([(0..2_599).map(|_| fastrand::alphanumeric()).collect::<String>()]).expect("a key");
    for key in [&longest, &key(1_299)] {
        store.write(key, &value).await.expect("written");
        assert_eq!(store.read(key).await.expect("read"), Some(value.clone()));
    }
    let error = store.write(&key(1_300), &value).await.expect_err("too long").explain();
    assert!(error.contains("it has 2601 bytes, and at most 2600 are allowed"), "{error}");
    assert_eq!(store.load("a").await.expect("loaded").map(|entry| entry.head.revision), None::<Revision>);
}

#[tokio::test]
async fn a_certificate_is_checked_as_the_url_says() {
    let Some(own) = Own::start(&[]) else { return };
    let root = own.root();
    let by_address = own.url.replace("localhost", "127.0.0.1");
    let with = |url: &str, mode: &str, root: Option<&std::path::Path>| {
        let root = root.map(|root| format!("&sslrootcert={}", root.display())).unwrap_or_default();
        connect(&format!("{url}?sslmode={mode}{root}"))
    };
    for mode in ["disable", "prefer", "require"] {
        with(&by_address, mode, None).await.expect(mode);
    }
    with(&own.url, "verify-full", Some(&root)).await.expect("the name and the authority");
    with(&by_address, "verify-ca", Some(&root)).await.expect("the authority");
    with(&by_address, "require", Some(&root)).await.expect("the authority");
    let message = "cannot be connected to";
    assert_refused(with(&by_address, "verify-full", Some(&root)), message, "certificate not valid for name").await;
    assert_refused(with(&own.url, "verify-full", None), message, "invalid peer certificate").await;
    let Some(other) = Own::start(&[]) else { return };
    assert_refused(with(&own.url, "verify-ca", Some(&other.root())), message, "invalid peer certificate").await;
    assert_refused(with(&own.url, "require", Some(&other.root())), message, "invalid peer certificate").await;

    let Some(plain) = Own::start(&["ssl=off"]) else { return };
    with(&plain.url, "prefer", None).await.expect("without TLS");
    assert_refused(with(&plain.url, "require", None), message, "server does not support TLS").await;
}

/// S5
#[tokio::test]
async fn a_post_that_is_damaged_is_an_error_and_the_entry_is_read() {
    let Some(url) = shared() else { return };
    let admin = admin(&url).await;
    for (damage, expected) in POST_DAMAGES {
        let store = store(&url).await;
        post_to_two(&store).await;
        admin.batch_execute(&format!("SET search_path = {}; {damage}", schema_of(&store))).await.expect("a damage");
        assert_damaged_posts(&store, expected).await;
    }
}
