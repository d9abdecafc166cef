//! An assistant answers questions about text files, and you watch it work.
//!
//! ```text
//! cargo run --example quickstart -- README.md                        three questions about the README
//! cargo run --example quickstart -- --ask "how many words" *.md      your own question, about your own files
//!     --deny GLOB       refuses to read paths that match
//!     --canned TEXT     answers with TEXT, without doing any work
//!     --slow MS         takes MS milliseconds longer to read each file, which leaves time to abort it
//!     --abort-after MS  aborts all runs after MS milliseconds
//!     --record FILE     records every event as JSON lines, and overwrites FILE; `--example replay -- FILE` prints them again
//! ```
//!
//! The trajectory is printed to stdout, and everything else is printed to stderr. Ctrl-C stops the program, but the
//! ends of all runs are still printed and recorded.

mod desk;
#[path = "../shared/help.rs"]
mod help;
mod tools;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use emitree::abort::AbortHandle;
use emitree::layer::AnyRun;
use emitree::lifecycle::{Lifecycle, Stage, Start};
use emitree::middleware::Trajectory;
use emitree::sinks::JsonlFile;
use emitree::{AnyEvent, Emitter, Error, Middleware, Options, Result, RunContext, Runnable, Stack, for_tree};
use globset::GlobMatcher;

use desk::{Answer, Desk, Question};
use tools::{BytesRead, Document, ReadFile};

fn main() -> ExitCode {
    if help::is_asked(include_str!("main.rs")) {
        return ExitCode::SUCCESS;
    }
    // One thread, so that the trajectory and the recording agree on the order of concurrent events.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let answered = runtime.block_on(answer(Arguments::parse()));
    // Does not wait for a thread that still reads a file.
    runtime.shutdown_background();
    match answered {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error.explain());
            ExitCode::FAILURE
        }
    }
}

async fn answer(arguments: Result<Arguments>) -> Result<()> {
    let arguments = arguments?;

    // A pipe to a sink: every event of the process is written to a file.
    let recording = match &arguments.record {
        Some(path) => {
            // `JsonlFile` appends, so empty the file for a new recording.
            std::fs::write(path, "").map_err(|error| Error::from(error).message(format!("cannot write {path}")))?;
            Some(Emitter::root().pipe_to(JsonlFile::open(path)?)?)
        }
        None => None,
    };

    // A listener on the root receives every event of the process.
    let events = Arc::new(AtomicUsize::new(0));
    let counter = events.clone();
    Emitter::root().observe("*.*", move |_: &dyn AnyEvent, _| {
        counter.fetch_add(1, Relaxed);
    })?;

    let desk = Desk::new()?;
    // A listener on an instance receives the events of each of its runs.
    desk.on_finish(|finish, _| {
        eprintln!("{:?}: {} in {:.1?}", finish.input().question, finish.outcome().status().as_str(), finish.duration());
    })?;

    // Ctrl-C drops the future of the run, which ends the run and all runs below it. With `biased`, the signal handler is
    // registered before the first run starts.
    let result = tokio::select! {
        biased;
        interrupted = tokio::signal::ctrl_c() => Err(interrupted.map_or_else(Error::from, |()| Error::new("Ctrl-C"))),
        result = ask_all(&desk, &arguments) => result,
    };
    // Wait for the ends of all runs and for the recording before the program ends.
    let shutdown = emitree::shutdown(Duration::from_secs(5)).await;
    eprintln!("{} events; {shutdown}", events.load(Relaxed));
    if let Some(recording) = recording {
        recording.close(Duration::from_secs(5)).await.complete()?;
    }
    result
}

async fn ask_all(desk: &Desk, arguments: &Arguments) -> Result<()> {
    let rules = Arc::new(HouseRules { deny: arguments.deny.clone(), canned: arguments.canned.clone() });
    let trajectory = Arc::new(Trajectory::stdout());
    let abort = AbortHandle::new();
    if let Some(after) = arguments.abort_after {
        let abort = abort.clone();
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            abort.abort(format!("it took longer than {after:?}"));
        });
    }
    for question in &arguments.questions {
        let run = desk
            .run(Question { question: question.clone(), files: arguments.files.clone() })
            // A listener on the run receives the events of the run and of all runs below it.
            .observe("tool.read_file.read", |read: &BytesRead, _| eprintln!("read {}: {} bytes", read.path, read.bytes))
            // An abort stops the run, and all runs below, at the next await.
            .abort_on(&abort)
            .middleware(rules.clone())
            .middleware(trajectory.clone());
        let answer = match arguments.slow {
            Some(time) => run.middleware(for_tree(slow(time))).await?,
            None => run.await?,
        };
        eprintln!("{answer}\n");
    }
    Ok(())
}

/// A custom middleware that denies paths and answers early.
#[derive(Debug)]
struct HouseRules {
    deny: Option<GlobMatcher>,
    canned: Option<String>,
}

impl Middleware for HouseRules {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if let Some(deny) = self.deny.clone() {
            // The payload type selects the events: the listener receives the `start` of each run below that takes a
            // `ReadFile` and returns a `Document`.
            ctx.emitter().with(Options::new().nested(true)).on(
                Stage::Start,
                move |start: &mut Start<ReadFile, Document>, _| {
                    let path = &start.input.path;
                    if deny.is_match(path) {
                        return Err(Error::denied("house rules", format!("`{path}` is not to be read")).into());
                    }
                    Ok(())
                },
            )?;
        }
        if let Some(text) = self.canned.clone() {
            // This listener receives the `start` of this run. It sets the output, so the work is skipped.
            ctx.emitter().on(Stage::Start, move |start: &mut Start<Question, Answer>, _| {
                start.output = Some(Answer { lines: vec![text.clone()] });
            })?;
        }
        Ok(())
    }
}

/// Returns a layer that delays the reading of each file. It accesses no input or output, so it fits runs of all types.
fn slow(time: Duration) -> Stack<AnyRun> {
    let layer = Stack::builder().layer_fn("slow", move |(), ctx, next| {
        Box::pin(async move {
            if ctx.name() == "read_file" {
                tokio::time::sleep(time).await;
            }
            next.run(&()).await
        })
    });
    layer.build()
}

/// The command line.
#[derive(Default)]
struct Arguments {
    files: Vec<String>,
    questions: Vec<String>,
    deny: Option<GlobMatcher>,
    canned: Option<String>,
    slow: Option<Duration>,
    abort_after: Option<Duration>,
    record: Option<String>,
}

impl Arguments {
    fn parse() -> Result<Self> {
        use lexopt::prelude::{Long, Value, ValueExt};
        let mut arguments = Self::default();
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("ask") => arguments.questions.push(parser.value()?.string()?),
                Long("deny") => {
                    arguments.deny = Some(globset::Glob::new(&parser.value()?.string()?)?.compile_matcher());
                }
                Long("canned") => arguments.canned = Some(parser.value()?.string()?),
                Long("slow") => arguments.slow = Some(millis(&mut parser)?),
                Long("abort-after") => arguments.abort_after = Some(millis(&mut parser)?),
                Long("record") => arguments.record = Some(parser.value()?.string()?),
                Value(file) => arguments.files.push(file.string()?),
                other => return Err(other.unexpected().into()),
            }
        }
        if arguments.files.is_empty() {
            arguments.files.push("README.md".to_owned());
        }
        if arguments.questions.is_empty() {
            let questions =
                ["How many words and lines?", "Which lines mention \"run\"?", "What are the 5 most frequent terms?"];
            arguments.questions.extend(questions.map(str::to_owned));
        }
        Ok(arguments)
    }
}

fn millis(parser: &mut lexopt::Parser) -> Result<Duration> {
    use lexopt::prelude::ValueExt;
    Ok(Duration::from_millis(parser.value()?.parse()?))
}
