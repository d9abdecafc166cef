//! The messages that a process sends to the session while it works.

use std::process;
use std::time::Duration;

use emitree::agent::Session;
use emitree::middleware::store::StoreError;
use emitree::{Error, Result};

use crate::log::Log;
use crate::process::wait_for;

/// The number of messages of each kind.
const MESSAGES: usize = 2;
/// The longest time before each message.
const PAUSE: u64 = 40;

/// Sends messages to the session, each with a text of its own, and waits until they are stored.
pub(crate) async fn send(session: &Session, log: &Log) -> Result<()> {
    for number in 0..2 * MESSAGES {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..PAUSE))).await;
        let kind = if number % 2 == 0 { "steer" } else { "follow" };
        let text = format!("{kind}-{}-{number}", process::id());
        log.add(&["send", &text]);
        if kind == "steer" {
            session.steer(&*text).map_err(Error::from)?;
        } else {
            session.follow_up(&*text).map_err(Error::from)?;
        }
        wait_until_saved(session).await?;
        log.add(&["saved", &text]);
    }
    Ok(())
}

async fn wait_until_saved(session: &Session) -> Result<()> {
    loop {
        match session.saved().await {
            Ok(()) => return Ok(()),
            Err(StoreError::Held { holder, .. }) => wait_for(&holder).await,
            // The run of this process has to end first.
            Err(StoreError::Lost { .. }) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error) => return Err(error.into()),
        }
    }
}
