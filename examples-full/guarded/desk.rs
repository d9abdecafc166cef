//! The desk, which runs a clerk for each letter, and continues with the next letter if a run fails.

use std::path::PathBuf;
use std::sync::Arc;

use emitree::{Result, RunContext, Runnable};

use crate::guards::guarded;
use crate::letter::Letter;
use crate::tools::{Mail, instance, post, reader, register};

pub(crate) fn desk() -> Result<impl Runnable<Input = Vec<PathBuf>, Output = Vec<String>> + 'static> {
    let answer = Arc::new(clerk()?);
    instance("Assistant", "Desk", move |letters: Vec<PathBuf>, _: RunContext| {
        let answer = Arc::clone(&answer);
        async move {
            let mut report = Vec::new();
            for path in letters {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let answered = answer
                    .run(path)
                    .await
                    .unwrap_or_else(|error| format!("not answered: {}", first_line(&error.explain())));
                report.push(format!("{name}: {answered}"));
            }
            Ok(report)
        }
    })
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Returns the runnable that answers one letter, with its guards.
fn clerk() -> Result<impl Runnable<Input = PathBuf, Output = String> + 'static> {
    let (read, look_up, send) = (Arc::new(reader()?), Arc::new(register()?), Arc::new(post()?));
    guarded(instance("Clerk", "answer", move |path: PathBuf, _: RunContext| {
        let (read, look_up, send) = (Arc::clone(&read), Arc::clone(&look_up), Arc::clone(&send));
        async move {
            let letter = read.run(path).await?;
            let letter = Letter::parse(&letter)?;
            let mut text = format!("Dear {}, ", letter.from);
            for order in &letter.orders {
                text += &format!("order {order} is {}, ", look_up.run((*order).to_owned()).await?);
            }
            text += &format!("you wrote: {}", letter.text);
            let to = letter.reply_to.unwrap_or("https://desk.example.org/outbox").to_owned();
            send.run(Mail { to, text }).await
        }
    })?)
}
