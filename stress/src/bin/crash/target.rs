//! The world outside: a file with a line for each effect.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use emitree::{Result, RunContext};

use crate::log::Log;

/// The time that a tool or a step works before its effect, and after it.
const WORK: Duration = Duration::from_millis(3);

#[derive(Clone)]
pub(crate) struct Target(PathBuf);

impl Target {
    pub(crate) fn new(folder: &Path) -> Self {
        Self(folder.join("effects"))
    }

    /// Works for the key of a run, with an effect.
    pub(crate) async fn work(
        &self,
        log: &Log,
        effect: String,
        ctx: &RunContext,
        is_idempotent: bool,
    ) -> Result<String> {
        let key = ctx.key().map(|key| key.to_string()).unwrap_or_default();
        log.add(&["call", &effect, &key]);
        tokio::time::sleep(WORK).await;
        log.point(&["before", &format!("effect {key}")]);
        self.add(&key, &effect, is_idempotent)?;
        log.point(&["after", &format!("effect {key}")]);
        tokio::time::sleep(WORK).await;
        Ok(effect)
    }

    /// Returns `true` if an effect has happened for a key.
    pub(crate) fn has(&self, key: &str) -> io::Result<bool> {
        let text = fs::read_to_string(&self.0).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(String::new()),
            _ => Err(error),
        })?;
        Ok(text.lines().any(|line| line.split(' ').next() == Some(key)))
    }

    /// Adds an effect. An idempotent target adds it once for each key, also if two processes do so at the same time.
    fn add(&self, key: &str, effect: &str, is_idempotent: bool) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
        // The lock ends with the process.
        file.lock()?;
        if is_idempotent && self.has(key)? {
            return Ok(());
        }
        file.write_all(format!("{key} {effect}\n").as_bytes())?;
        file.sync_all()
    }
}
