//! Stores wake the tasks that wait for posts and for work (F2).

use std::time::Duration;

use emitree_middleware::store::{
    Append, EntryHead, EntryStatus, MemoryStore, Post, Posted, Store, StoreError, Take, Wakes,
};
use emitree_stores::{PostgresStore, SqliteStore};
use tokio_postgres::Client;

use super::postgres::server::{self, Own, admin, connect, database, database_of, new_name, pool, shared, with_user};

fn wakes<S: Store>(store: &S) -> &Wakes {
    store.wakes().expect("it wakes")
}

/// Changes entries in one process, and waits in another one for each change to wake it. A listener that has just connected
/// wakes all once, so all is done three times.
async fn changes_of_one_wake_the_other<S: Store, T: Store>(one: &S, other: &T, ids: &str) -> Result<(), StoreError> {
    let work = wakes(other).watch_work(["import"]);
    let take = Take::new("worker", Duration::from_secs(600), ["import"]).most(1);
    for n in 0..3 {
        let id = format!("{ids}{n}");
        let mut head = EntryHead::new(&*id, "job");
        (head.status, head.queue) = (EntryStatus::Queued, Some("import".to_owned()));
        one.append(&Append::new(head).due(Duration::ZERO)).await?;
        work.woken().await;

        let taken = other.take(&take).await?.remove(0);
        let posts = wakes(other).watch_posts(&id);
        for text in ["one", "two", "three"] {
            one.post(&id, &Post::new(text)).await?;
            posts.woken().await;
        }
        let posts = other.posts(&id).await?.into_iter().map(|post| post.id);
        other.append(&Append::new(taken).by("worker").taking(posts)).await?;
        // A post to an entry that nobody holds makes it due.
        one.post(&id, &Post::new("four")).await?;
        work.woken().await;
        other.take(&take).await?;
    }
    Ok(())
}

/// F2
#[tokio::test]
async fn a_store_of_one_process_wakes_its_clones() -> Result<(), StoreError> {
    let store = MemoryStore::new();
    changes_of_one_wake_the_other(&store, &store.clone(), "a").await?;
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(folder.path().join("agents.db")).await?;
    changes_of_one_wake_the_other(&store, &store.clone(), "a").await
}

/// F2
#[tokio::test]
async fn a_server_wakes_other_processes_also_after_a_crash() -> Result<(), StoreError> {
    let Some(server) = Own::start(&[]) else { return Ok(()) };
    let connect = connect(&server.url);
    let one = connect.clone().await?;
    let other = connect.await?;
    changes_of_one_wake_the_other(&one, &other, "a").await?;
    server.crash();
    server.restart();
    // It listens again, and does not know which changes were made meanwhile.
    wakes(&other).watch_posts("a0").woken().await;
    changes_of_one_wake_the_other(&one, &other, "b").await
}

/// F2
#[tokio::test]
async fn behind_a_pooler_of_transactions_another_url_is_listened_to() -> Result<(), StoreError> {
    let (Some(url), Some(pool)) = (shared(), pool()) else { return Ok(()) };
    let connect = connect(&pool).listen(url);
    let one = connect.clone().await?;
    let other = connect.await?;
    changes_of_one_wake_the_other(&one, &other, "a").await
}

/// Creates a schema of format 1.
async fn create_older(admin: &Client) -> String {
    let schema = new_name("Older");
    let sql = include_str!("../../src/postgres/schema/1.sql").replace("{schema}", &format!("\"{schema}\""));
    admin.batch_execute(&format!("CREATE SCHEMA \"{schema}\"; {sql}")).await.expect("format 1");
    schema
}

#[tokio::test]
async fn the_sql_of_the_schema_changes_an_older_one_once_and_needs_no_right_to_create_another() -> Result<(), StoreError>
{
    let Some(url) = shared() else { return Ok(()) };
    let url = database(&url, "").await;
    let admin = admin(&url).await;
    let role = new_name("owner");
    let schema = create_older(&admin).await;
    let own = format!(
        "CREATE ROLE {role} LOGIN; REVOKE CREATE ON DATABASE {} FROM PUBLIC; ALTER SCHEMA \"{schema}\" OWNER TO {role};
        DO $$ DECLARE t text; BEGIN
            FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' LOOP
                EXECUTE format('ALTER TABLE %I.%I OWNER TO {role}', '{schema}', t);
            END LOOP;
        END $$; ALTER SEQUENCE \"{schema}\".revision OWNER TO {role}",
        database_of(&url)
    );
    admin.batch_execute(&own).await.expect("an owner");
    let connect = || connect(&url).schema(&schema).manage_schema(false);
    connect().await.expect_err("it has the format 1");
    let owner = server::admin(&with_user(&url, &role)).await;
    for _ in 0..2 {
        owner.batch_execute(&PostgresStore::schema(&schema, "postgres")?).await.expect("format 2");
    }
    connect().await.map(drop)
}

/// A process of format 1 goes on after another one has changed the tables, and wakes it.
#[tokio::test]
async fn older_processes_go_on_beside_newer_ones() -> Result<(), StoreError> {
    let Some(url) = shared() else { return Ok(()) };
    let old = admin(&url).await;
    let schema = create_older(&old).await;
    let append = format!(
        "SELECT at FROM \"{schema}\".append_1('a', $1, '', 'queued', '', 0, false, false, '{{}}', '{{}}', '', NULL, 'import', 0, 0,
            '{{}}')"
    );
    let append = async |after: i64| old.query_one(&append, &[&after]).await.expect("appended").get::<_, i64>(0);
    let revision = append(0).await;

    let new = connect(&url).schema(&schema).await?;
    let version = old.query_one(&format!("SELECT version FROM \"{schema}\".format"), &[]).await.expect("a version");
    assert_eq!(version.get::<_, i32>(0), 2);
    let work = wakes(&new).watch_work(["import"]);
    // The listener wakes all once, when it has connected.
    work.woken().await;
    // A post of the new process gives the entry a later revision.
    assert_eq!(new.post("a", &Post::new("hello")).await?, Posted::Kept);
    assert_eq!(append(revision).await, revision + 1);
    append(revision + 1).await;
    work.woken().await;
    Ok(())
}
