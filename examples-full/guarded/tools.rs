//! The tools of the desk: a reader, a register of orders that is busy at first, and the post.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree::emitter::Creator;
use emitree::runnable::{Data, RunnableFn};
use emitree::{Emitter, Error, Result, RunContext, Runnable, runnable_fn};
use serde::{Deserialize, Serialize};

/// Makes a runnable with a kind and a name. The trajectory prints them, and `Runs` selects runs by them.
pub(crate) fn instance<F, Fut, I, O>(kind: &'static str, name: &'static str, f: F) -> Result<RunnableFn<F, I, O>>
where
    F: Fn(I, RunContext) -> Fut + Send + Sync,
    Fut: Future<Output = Result<O>> + Send,
    I: Data + Clone,
    O: Data,
{
    let namespace = [kind.to_lowercase(), name.to_owned()].join(".");
    let emitter = Emitter::root().child_builder(namespace).creator(Creator::new(kind, name)).build()?;
    Ok(runnable_fn(name, f).with_emitter(emitter))
}

/// Returns the folder of the sample letters.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guarded")
}

/// Returns a tool that reads a letter.
pub(crate) fn reader() -> Result<impl Runnable<Input = PathBuf, Output = String> + 'static> {
    instance("Tool", "read", |path: PathBuf, _: RunContext| async move {
        let text = tokio::fs::read_to_string(&path).await;
        text.map_err(|error| Error::from(error).message(format!("cannot read {}", path.display())))
    })
}

/// Returns a tool that looks up orders. Its first call fails, as if its server had just started.
pub(crate) fn register() -> Result<impl Runnable<Input = String, Output = String> + 'static> {
    let is_awake = Arc::new(AtomicBool::new(false));
    instance("Tool", "look_up", move |order: String, _: RunContext| {
        let was_awake = is_awake.swap(true, Ordering::Relaxed);
        async move {
            if !was_awake {
                return Err(Error::new("the register is busy").retryable(true));
            }
            let orders = tokio::fs::read_to_string(folder().join("orders.tsv")).await?;
            let state = orders.lines().filter_map(|line| line.split_once('\t')).find(|(number, _)| *number == order);
            Ok(state.map_or("not known", |(_, state)| state).to_owned())
        }
    })
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Mail {
    pub(crate) to: String,
    pub(crate) text: String,
}

/// Returns a tool that pretends to send a letter: it only returns the address and the text.
pub(crate) fn post() -> Result<impl Runnable<Input = Mail, Output = String> + 'static> {
    instance(
        "Tool",
        "send",
        |mail: Mail, _: RunContext| async move { Ok(format!("sent to {}: {}", mail.to, mail.text)) },
    )
}
