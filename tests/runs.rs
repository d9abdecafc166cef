//! The fold of records to runs says of an agent's run what the run itself returned, live and from a file.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use emitree::agent::{Agent, ChatModel, Reply, ScriptedModel, Tool, Usage, tool_fn};
use emitree::emitter::BoxError;
use emitree::middleware::budget::Price;
use emitree::sinks::runs::{Cursor, Head, RecordingFile, Run, Runs, Source};
use emitree::sinks::{Detail, DetailFn, JsonlFile, Memory, Sink, SinkRecord};
use emitree::{Emitter, Error, Result, RunContext, Runnable, runnable_fn};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
struct Text {
    text: String,
}

/// A tool that fails at first.
fn shout() -> Result<Tool> {
    let calls = AtomicU32::new(0);
    let shout = move |Text { text }, _: RunContext| {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        async move { if call == 0 { Err(Error::new("busy").retryable(true)) } else { Ok(text.to_uppercase()) } }
    };
    Ok(tool_fn("shout", "Shouts a text", shout)?.retries(1))
}

fn librarian() -> Result<Agent> {
    let script = ScriptedModel::new("small")
        .reply(Reply::calls([("shout", json!({"text": "a"}))]).usage(Usage::new(1000, 20)))
        .reply(Reply::text("A").usage(Usage::new(2000, 30)));
    let model = ChatModel::new(script)?.price(Price::per_million(1.into(), 10.into())?);
    Agent::builder("librarian", model).tool(shout()?).build()
}

/// A sink that asks for heads.
struct OfHeads(Memory);

impl Sink for OfHeads {
    fn write(&mut self, record: &SinkRecord) -> std::result::Result<(), BoxError> {
        self.0.write(record)
    }

    fn detail(&self) -> DetailFn {
        Box::new(|_, _| Detail::Heads)
    }
}

/// Records what a future does on the root emitter, in memory and in a file. Records without values have the same runs.
async fn recorded(work: impl Future<Output = Result<()>>) -> Result<(Vec<Head>, Vec<Head>)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.jsonl");
    let (memory, without_values) = (Memory::new(), Memory::new());
    let sinks = [
        Emitter::root().pipe_to(memory.clone())?,
        Emitter::root().pipe_to(JsonlFile::open(&path)?)?,
        Emitter::root().pipe_to(OfHeads(without_values.clone()))?,
    ];
    work.await?;
    for sink in sinks {
        sink.close(Duration::MAX).await.complete()?;
    }
    let read = RecordingFile::new(&path).heads(None, usize::MAX)?.heads;
    let cursors: Vec<Cursor> = read.iter().map(|head| head.cursor).collect();
    assert_eq!(cursors.len(), memory.records().len());
    let of = |memory: &Memory| -> Vec<Head> {
        memory.records().iter().zip(&cursors).map(|(record, cursor)| Head::of(record, *cursor)).collect()
    };
    let live = of(&memory);
    assert_eq!(fold(&of(&without_values)), fold(&live));
    Ok((live, read))
}

fn fold(heads: &[Head]) -> Vec<Run> {
    let mut runs = Runs::default();
    for head in heads {
        runs.add(head);
    }
    runs.iter().collect()
}

fn shown(runs: &[Run]) -> Vec<String> {
    let name = |run: &Run| format!("{} {}", run.kind, run.name);
    let above = |run: &Run| runs.iter().find(|above| Some(above.id) == run.parent).map(name);
    let line = |run: &Run| {
        let outcome = run.outcome.as_deref().unwrap_or("unfinished");
        let above = above(run).unwrap_or_else(|| "-".to_owned());
        format!(
            "{} < {above}: {outcome}, {} tokens, {} retries",
            name(run),
            run.input_tokens + run.output_tokens,
            run.discarded
        )
    };
    runs.iter().map(line).collect()
}

/// V2. One test, because both of its parts listen on the root emitter.
#[tokio::test]
async fn runs_folded_from_records_are_the_runs_of_the_agent() -> Result<()> {
    let answer = std::sync::OnceLock::new();
    let (live, read) = recorded(async {
        let given = librarian()?.ask("Shout a.").await?;
        answer.set(given).map_err(|_| Error::new("one answer"))
    })
    .await?;
    assert_eq!(live, read, "a record has the same head live and from a file");
    let runs = fold(&live);
    let expected = [
        "Agent librarian < -: success, 0 tokens, 0 retries",
        "ChatModel small < Agent librarian: success, 1020 tokens, 0 retries",
        "Tool shout < Agent librarian: success, 0 tokens, 1 retries",
        "ChatModel small < Agent librarian: success, 2030 tokens, 0 retries",
    ];
    assert_eq!(shown(&runs), expected);
    let answer = answer.get().ok_or_else(|| Error::new("no answer"))?;
    assert_eq!(runs.iter().map(|run| run.input_tokens + run.output_tokens).sum::<u64>(), answer.usage.total());
    assert_eq!(runs.iter().filter_map(|run| run.cost).reduce(|sum, cost| sum + cost), answer.cost);
    for run in &runs {
        let (started, ended) = (run.started.expect("a start"), run.ended.expect("an end"));
        let above = runs.iter().find(|above| Some(above.id) == run.parent);
        assert!(started <= ended && above.is_none_or(|above| above.started <= run.started && run.ended <= above.ended));
    }

    let ends = [
        ("failed", Error::new("no")),
        ("denied", Error::denied("policy", "no")),
        ("halted", Error::halted("budget", "no")),
        ("timed_out", Error::timed_out("no")),
    ];
    let (live, read) = recorded(async {
        for (name, error) in ends.clone() {
            let run = runnable_fn(name, move |(): (), _: RunContext| {
                let error = error.clone();
                async move { Err::<(), _>(error) }
            });
            assert!(run.run(()).await.is_err());
        }
        Ok(())
    })
    .await?;
    assert_eq!(live, read);
    let runs = fold(&live);
    let outcomes: Vec<_> = runs.iter().map(|run| (&*run.name, run.outcome.as_deref(), run.error.as_deref())).collect();
    assert_eq!(outcomes, ends.each_ref().map(|(name, _)| (*name, Some(*name), Some("no"))));
    Ok(())
}
