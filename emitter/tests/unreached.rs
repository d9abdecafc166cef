//! An emitter that is dropped with listeners which cannot have received an event is warned of: the events were probably
//! emitted on another emitter with the same name.

#[path = "../../tests/support/journal.rs"]
mod journal;
mod support;

use emitree_emitter::{Creator, Emitter};
use journal::Journal;

use crate::support::{TestResult, run_of};

/// Returns the messages that are logged during a call.
fn logged(f: impl FnOnce() -> TestResult) -> Result<Vec<String>, Box<dyn std::error::Error + Send + Sync>> {
    let journal = Journal::default();
    tracing::subscriber::with_default(journal.clone(), f)?;
    Ok(journal.take())
}

fn listen(emitter: &Emitter) -> TestResult {
    emitter.on("saved", |_: &mut u32, _| ())?;
    Ok(())
}

#[test]
fn an_emitter_with_listeners_that_goes_and_never_received_an_event_and_never_had_a_child_or_run_is_warned_of_once()
-> TestResult {
    let app = Emitter::new();
    let drop_one = || {
        listen(&app.child("app")?)?;
        app.child("app")?.emit_now("saved", &mut 7_u32)?;
        Ok(())
    };
    let lines = logged(drop_one)?;
    let [line] = &*lines else { panic!("{lines:?}") };
    assert!(line.contains("`app`") && line.contains("1 listeners") && line.contains(".clone()"), "{line}");
    assert_eq!(logged(drop_one)?, [""; 0], "it is logged once for each name");
    let lines = logged(|| listen(&app.child("other")?))?;
    assert_eq!(lines.len(), 1, "{lines:?}");
    // The same holds for a child in a run.
    let lines = logged(|| listen(&run_of(&app).child("in_run")?))?;
    assert_eq!(lines.len(), 1, "{lines:?}");
    Ok(())
}

#[test]
fn an_emitter_is_not_warned_of_if_an_event_reached_it_or_something_was_made_below_it_or_it_has_no_listeners()
-> TestResult {
    type Case = fn(&Emitter) -> TestResult;
    let cases: [(&str, Case); 9] = [
        ("an event", |it| {
            listen(it)?;
            Ok(it.emit_now("saved", &mut 7_u32)?)
        }),
        ("an event with another name", |it| {
            listen(it)?;
            Ok(it.emit_now("closed", &mut 7_u32)?)
        }),
        ("an event from a pipe", |it| {
            listen(it)?;
            let from = Emitter::new();
            let _pipe = from.pipe(it);
            Ok(from.emit_now("saved", &mut 7_u32)?)
        }),
        ("a child before the listener", |it| {
            it.child("below")?;
            listen(it)
        }),
        ("a child", |it| {
            listen(it)?;
            it.child("below")?;
            Ok(())
        }),
        ("a child with a creator", |it| {
            listen(it)?;
            drop(it.child_with(Creator::new("Kind", "name")));
            Ok(())
        }),
        ("a run", |it| {
            listen(it)?;
            drop(run_of(it));
            Ok(())
        }),
        ("no listeners", |_| Ok(())),
        ("removed listeners", |it| {
            it.on("saved", |_: &mut u32, _| ())?.off();
            Ok(())
        }),
    ];
    for (n, (name, case)) in cases.into_iter().enumerate() {
        let app = Emitter::new();
        // A name of its own, because a warning is logged once for each name.
        let lines = logged(|| case(&app.child(format!("case{n}"))?))?;
        assert_eq!(lines, [""; 0], "{name}");
    }
    Ok(())
}

#[test]
fn the_emitter_of_an_instance_or_a_run_is_not_warned_of() -> TestResult {
    let app = Emitter::new();
    let lines = logged(|| listen(&app.child("instance")?.child_with(Creator::new("Kind", "name"))))?;
    assert_eq!(lines, [""; 0]);
    let instance = app.child("model")?;
    let lines = logged(|| {
        let run = run_of(&instance);
        listen(&run)?;
        run.end_run();
        drop(run);
        listen(&run_of(&instance))
    })?;
    assert_eq!(lines, [""; 0]);
    Ok(())
}
