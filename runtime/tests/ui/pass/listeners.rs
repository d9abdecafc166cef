//! Listeners of a run: typed and untyped, sync and async, with and without a result. Typed helpers infer the payloads.
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use emitree_emitter::{AnyEvent, BoxError, Emitter, EventMeta, Options};
use emitree_runtime::{
    Failure, Finish, Lifecycle, LifecycleMut, Outcome, Result, RunContext, Runnable, Stage, Start, Success,
    lifecycle_of, runnable_fn,
};

#[derive(serde::Serialize)]
struct NewToken(String);

async fn slow(token: &mut NewToken, _: &EventMeta<'_>) -> std::result::Result<(), BoxError> {
    token.0.push('!');
    Ok(())
}

async fn used() -> Result<()> {
    let talk = runnable_fn("talk", |n: u32, ctx: RunContext| async move {
        ctx.emitter().emit("new_token", &mut NewToken(n.to_string())).await?;
        Ok(n.to_string())
    });
    let seen = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&seen);
    let answer: String = talk
        .run(1)
        .on("new_token", |token: &mut NewToken, _| print!("{}", token.0))
        .on("new_token", |token: &mut NewToken, meta| {
            token.0.push_str(meta.name());
            Ok(())
        })
        .on("*.*", |event: &mut dyn AnyEvent, meta| println!("{} {}", meta.path(), event.to_json()))
        .on_async("new_token", |token: &mut NewToken, _| {
            Box::pin(async move {
                token.0.parse::<u32>()?;
                Ok(())
            })
        })
        .on_async("new_token", |token: &mut NewToken, meta| Box::pin(slow(token, meta)))
        .observe("*.*", move |_: &dyn AnyEvent, _| _ = counted.fetch_add(1, Ordering::Relaxed))
        .observe_async("*.*", |event: &dyn AnyEvent, _| {
            Box::pin(async move {
                drop(event.to_json());
                Ok(())
            })
        })
        .register(Options::new().priority(1).nested(true).on(Stage::Start, |_: &mut dyn AnyEvent, _| ()))
        .on_start(|start, _| start.input += 1)
        .on_start(|start, _| {
            start.output = Some("early".into());
            Ok(())
        })
        .on_start(|_, _| Err("a plain text".into()))
        .on_success(|success, _| success.output.push('.'))
        .on_error(|failure, meta| println!("{} {}", meta.path(), failure.error().explain()))
        .on_finish(|finish, _| match finish.outcome() {
            Outcome::Success { output } => println!("{output} {:?} {}", finish.duration(), finish.input()),
            other => println!("{:?}", other.status()),
        })
        .await?;
    drop(answer);

    talk.on_start(|start, _| start.input = 0)?;
    talk.on_success(|success, _| success.output.clear())?;
    Emitter::root().on(lifecycle_of(&talk), |event: &mut dyn AnyEvent, meta| {
        if let Some(LifecycleMut::Start(start)) = LifecycleMut::of(event, meta) {
            start.set_input_json(7.into())?;
        }
        Ok(())
    })?;
    Emitter::root().on(Stage::Start, |start: &mut Start<u32, String>, _| start.input = 1)?;
    Emitter::root().on(Stage::Success, |success: &mut Success<u32, String>, _| success.output.clear())?;
    Emitter::root().on(Stage::Error, |failure: &mut Failure, _| drop(failure.error().report()))?;
    Emitter::root().observe(Stage::Finish, |finish: &Finish<u32, String>, _| _ = finish.outcome().status())?;
    Ok(())
}

pub(crate) fn main() {
    drop(used());
}
