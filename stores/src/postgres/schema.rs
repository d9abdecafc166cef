//! The tables and functions of a store: numbered files of SQL, each of which changes them to the format of its number.

use emitree_middleware::store::StoreError;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use super::failure::Failure;

/// The newest format.
const FORMAT: i32 = 2;
/// The files, in the order of their numbers.
const FILES: [&str; FORMAT as usize] = [include_str!("schema/1.sql"), include_str!("schema/2.sql")];
const ROLE: &str = include_str!("schema/role.sql");
/// The tables that tell that a schema is used.
const TABLES: [&str; 4] = ["entry", "format", "part", "value"];
/// The lock under which a process changes the tables: `emitree` in ASCII.
const LOCK: i64 = 0x0065_6d69_7472_6565;
/// The maximum length of a name, in bytes. PostgreSQL cuts longer names.
const MAX_NAME: usize = 63;

/// The name of a schema, quoted for SQL.
#[derive(Clone, Debug)]
pub(super) struct Schema {
    pub(super) name: String,
    pub(super) quoted: String,
}

/// The state of a schema.
enum Found {
    Nothing,
    Format(i32),
}

impl Schema {
    pub(super) fn new(name: &str) -> Result<Self, StoreError> {
        let quoted = quoted(name, "schema")?;
        Ok(Self { name: name.to_owned(), quoted })
    }

    /// Returns the SQL of the newest format, with the rights of a role.
    pub(super) fn sql(&self, role: &str) -> Result<String, StoreError> {
        let role = ROLE.replace("{role}", &quoted(role, "role")?);
        let steps: String = (1..).zip(FILES).map(|(format, file)| self.step(format, file)).collect();
        let schema = &self.quoted;
        let role = self.named(&role);
        // `IF NOT EXISTS` would need the right to create one also if it exists.
        let is_missing = format!("to_regnamespace('{schema}') IS NULL");
        let create = format!("DO $step$\nBEGIN\nIF {is_missing} THEN CREATE SCHEMA {schema};\nEND IF;\nEND\n$step$;");
        Ok(format!("BEGIN;\n{create}\n\n{steps}{role}\nCOMMIT;\n"))
    }

    /// Returns the SQL that changes the tables to a format, if they do not have it.
    fn step(&self, format: i32, file: &str) -> String {
        let schema = &self.quoted;
        let file = self.named(file);
        let is_missing = match format {
            1 => format!("to_regclass('{schema}.format') IS NULL"),
            _ => format!("(SELECT version FROM {schema}.format) < {format}"),
        };
        format!("DO $step$\nBEGIN\nIF {is_missing} THEN EXECUTE $file$\n{file}$file$;\nEND IF;\nEND\n$step$;\n\n")
    }

    fn named(&self, sql: &str) -> String {
        sql.replace("{schema}", &self.quoted)
    }

    /// Checks that the schema has the newest format, or a later one that a newer version has written. If `manages` is
    /// `true`, creates or changes its tables.
    pub(super) async fn prepare(&self, client: &Client, manages: bool) -> Result<(), Failure> {
        match self.find(client).await? {
            Found::Format(format) if format == FORMAT => return Ok(()),
            Found::Format(format) if format > FORMAT => {
                let remedy = "use the version of emitree that has changed it";
                return Err(self
                    .unusable(&format!("has the format {format}, and this version reads format {FORMAT}: {remedy}")));
            }
            found if !manages => {
                let problem = match found {
                    Found::Nothing => "has no tables of a store".to_owned(),
                    Found::Format(format) => format!("has the format {format}, and this version needs {FORMAT}"),
                };
                let remedy = "execute the SQL of `PostgresStore::schema`, or allow `manage_schema`";
                return Err(self.unusable(&format!("{problem}: {remedy}")));
            }
            Found::Nothing | Found::Format(_) => {}
        }
        // With another level, the transaction would not see the tables that another process creates while it waits.
        client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        client.query_typed("SELECT pg_advisory_xact_lock($1)", &[(&LOCK, Type::INT8)]).await?;
        let format = match self.find(client).await? {
            Found::Format(format) => format as usize,
            Found::Nothing => {
                self.create(client).await?;
                0
            }
        };
        for file in FILES.iter().skip(format) {
            client.batch_execute(&self.named(file)).await?;
        }
        Ok(client.batch_execute("COMMIT").await?)
    }

    /// Creates the schema. If it is there, no right to create one is needed.
    async fn create(&self, client: &Client) -> Result<(), Error> {
        let find = "SELECT 1 FROM pg_namespace WHERE nspname = $1";
        let found = client.query_typed(find, &[(&self.name, Type::TEXT)]).await?;
        if found.is_empty() { client.batch_execute(&format!("CREATE SCHEMA {}", self.quoted)).await } else { Ok(()) }
    }

    async fn find(&self, client: &Client) -> Result<Found, Failure> {
        let find = "SELECT c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
            WHERE n.nspname = $1 AND c.relname = ANY($2) ORDER BY 1";
        let tables = client.query_typed(find, &[(&self.name, Type::TEXT), (&&TABLES[..], Type::TEXT_ARRAY)]).await?;
        let tables = tables.iter().map(|row| row.try_get(0)).collect::<Result<Vec<&str>, _>>()?;
        if tables.is_empty() {
            return Ok(Found::Nothing);
        }
        if tables == TABLES {
            let format = format!("SELECT version FROM {}.format WHERE single", self.quoted);
            let format = client.query_typed_one(&format, &[]).await.and_then(|row| row.try_get(0));
            match format {
                Ok(format) => return Ok(Found::Format(format)),
                Err(error) if is_foreign(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let problem = format!("has tables of another program (`{}`): name another schema", tables.join("`, `"));
        Err(self.unusable(&problem))
    }

    fn unusable(&self, problem: &str) -> Failure {
        Failure::Unusable(format!("its schema `{}` {problem}", self.name))
    }
}

/// Returns `true` if a table is not the one that this crate has created: a column is missing or has another type, or
/// there is not one row.
fn is_foreign(error: &Error) -> bool {
    use tokio_postgres::error::SqlState;
    let codes = [SqlState::UNDEFINED_COLUMN, SqlState::DATATYPE_MISMATCH, SqlState::WRONG_OBJECT_TYPE];
    let lost = std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<std::io::Error>);
    error.code().map_or(!error.is_closed() && !lost, |code| codes.contains(code))
}

/// Returns a name in quotes. Only names without special characters are allowed, because the SQL has them in texts too.
fn quoted(name: &str, of: &str) -> Result<String, StoreError> {
    let is_plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let problem = match name {
        "" => "it is empty".to_owned(),
        name if name.len() > MAX_NAME => format!("it has {} bytes, and at most {MAX_NAME} are allowed", name.len()),
        name if !is_plain(name) => "only letters and digits of ASCII, `_` and `-` are allowed".to_owned(),
        name if name.starts_with("pg_") => "names that begin with `pg_` are PostgreSQL's own".to_owned(),
        name => return Ok(format!("\"{name}\"")),
    };
    Err(StoreError::failed(format!("`{name}` is no name of a {of}"), problem))
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn a_name_that_would_need_quotes_inside_is_refused() {
        let table = [
            ("", "it is empty"),
            ("a\"b", "only letters and digits"),
            ("a$$b", "only letters and digits"),
            ("pg_agents", "PostgreSQL's own"),
            (&*"a".repeat(64), "it has 64 bytes"),
        ];
        for (name, problem) in table {
            let error = Schema::new(name).expect_err(name);
            assert_eq!(error.to_string(), format!("`{name}` is no name of a schema"));
            assert!(error.source().expect("a cause").to_string().contains(problem), "{error:?}");
        }
        assert_eq!(Schema::new("My-Agents_2").expect("a name").quoted, "\"My-Agents_2\"");
    }

    #[test]
    fn the_sql_has_the_schema_and_the_role_at_each_place() {
        let sql = Schema::new("agents").and_then(|schema| schema.sql("app")).expect("SQL");
        assert!(!sql.contains('{') || !sql.contains("{schema}") && !sql.contains("{role}"), "{sql}");
        assert!(sql.contains("GRANT USAGE ON SCHEMA \"agents\" TO \"app\";"), "{sql}");
    }
}
