//! The store on a PostgreSQL server (S1 to S5, F8). Without a server, the tests say that they are skipped.

mod faults;
mod lost_replies;
mod proxy;
mod refused;
pub(crate) mod server;

use emitree_stores::{PostgresStore, conformance};
use futures_util::future::join_all;

use self::server::{admin, connect, database, database_of, new_name, pool, shared, store, with_user};
use super::in_turn::InTurn;
use super::repeats;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_on_a_server_keeps_the_contract() {
    let Some(url) = shared() else { return };
    conformance(async || store(&url).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_processes_on_one_server_keep_the_contract_together() {
    let Some(url) = shared() else { return };
    conformance(async || {
        let connect = connect(&url);
        InTurn::new([connect.clone().await.expect("a store"), connect.await.expect("a store")])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_behind_pgbouncer_in_transaction_mode_keeps_the_contract() {
    let Some(url) = pool() else { return };
    conformance(async || store(&url).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_keeps_the_contract_under_each_isolation_level() {
    let Some(url) = shared() else { return };
    // In the long form, more than 1,000 releases race against posts, and more than 1,000 renewals against takes.
    let times = repeats(3);
    let levels = ["read uncommitted", "read committed", "repeatable read", "serializable"];
    let keeps_the_contract = levels.map(async |level| {
        // The order of texts is not that of bytes.
        let url = database(&url, "TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'").await;
        let set = format!("ALTER DATABASE {} SET default_transaction_isolation = '{level}'", database_of(&url));
        admin(&url).await.batch_execute(&set).await.expect("a level");
        for _ in 0..times {
            conformance(async || store(&url).await).await;
        }
    });
    join_all(keeps_the_contract).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_of_the_least_role_keeps_the_contract_in_a_schema_of_another_role() {
    let Some(url) = shared() else { return };
    let (url, role) = (database(&url, "").await, new_name("least"));
    let admin = admin(&url).await;
    admin.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.expect("a role");
    let as_role = with_user(&url, &role);
    conformance(async || {
        let schema = new_name("My-Agents");
        admin.batch_execute(&PostgresStore::schema(&schema, &role).expect("SQL")).await.expect("a schema");
        PostgresStore::connect(&as_role).schema(schema).manage_schema(false).await.expect("a store")
    })
    .await;
}
