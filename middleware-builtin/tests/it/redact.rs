//! A redaction replaces secrets in the input, output, events and error of a run, even if a secret is split over several
//! events.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use crate::support::{Any, Failing, TestResult, instance};
use emitree_emitter::{BoxError, Detail, DetailFn, Emitter, Event, EventMeta, EventName, Namespace, Sink, SinkRecord};
use emitree_middleware::approval::{Decision, Request};
use emitree_middleware::own_events::{OwnEvents, UserTexts};
use emitree_middleware::redact::{Pseudonyms, Redacted, RunPart, Strategy};
use emitree_middleware::{Approval, Cache, ExfilGuard, Redact};
use emitree_runtime::{
    Error, ErrorKind, Guard, GuardOptions, Middleware, Op, RunContext, Runnable, Stack, Stage, Start, Summary,
    TraceParent, for_tree, map_input, map_output, runnable_fn,
};
use emitree_secrets::{Kind, PatternError};
use emitree_sinks::Memory;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const MAIL: &str = "maria@mailbox.org";
const CARD: &str = "4111 1111 1111 1111";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Token {
    text: String,
    index: usize,
}

/// The events that were received, in order.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn note(&self, line: String) {
        self.0.lock().expect("nobody panics here").push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("nobody panics here"))
    }

    /// Records the path and payload of each event on an emitter.
    fn on(&self, emitter: &Emitter) -> TestResult {
        let heard = self.clone();
        emitter.observe("*.*", move |event: &Any, meta| heard.note(format!("{} {}", meta.path(), event.to_json())))?;
        Ok(())
    }
}

fn echo(root: &Emitter) -> impl Runnable<Input = Value, Output = Value> + 'static {
    instance(root, "Tool", "echo", |value: Value, _: RunContext| async move { Ok(json!({"got": value})) })
}

/// Returns a tool that emits the chunks of a text, and answers with their number.
fn write(root: &Emitter) -> impl Runnable<Input = Vec<String>, Output = usize> + 'static {
    instance(root, "Tool", "write", |chunks: Vec<String>, ctx: RunContext| async move {
        for (index, text) in chunks.iter().enumerate() {
            ctx.emitter().emit("new_token", &mut Token { text: text.clone(), index }).await?;
        }
        Ok(chunks.len())
    })
}

fn tokens() -> Redact {
    Redact::new().parts([RunPart::Event]).text_of("new_token", |token: &mut Token| &mut token.text)
}

/// A piece of a text, in an event that is declared as data.
#[derive(Clone, Serialize, Deserialize)]
struct Piece {
    text: String,
}

impl Event for Piece {
    const NAME: EventName = EventName::new("piece");
}

// Only an event whose text the run filters itself is refused (M10).
#[tokio::test]
async fn a_secret_in_pieces_of_a_declared_event_is_redacted_or_refused_with_text_of() -> TestResult {
    let heard = Heard::default();
    let root = Emitter::new().child_builder("spell").declares_data::<Piece>().build()?;
    heard.on(&root)?;
    let spell = runnable_fn("spell", |pieces: Vec<String>, ctx: RunContext| async move {
        for text in pieces {
            ctx.emitter().emit_event(&mut Piece { text }).await?;
        }
        Ok(())
    });
    let spell = spell.with_emitter(root);
    let pieces = || ["to maria@mail", "box.org", " now"].map(str::to_owned).to_vec();
    let pieces_heard = || {
        let lines = heard.take();
        let pieces = lines.iter().filter_map(|line| line.strip_prefix("spell.piece "));
        pieces.map(|json| serde_json::from_str::<Piece>(json).map(|piece| piece.text)).collect::<Result<String, _>>()
    };
    spell.run(pieces()).middleware(Redact::new().text_of("piece", |piece: &mut Piece| &mut piece.text)).await?;
    assert_eq!(pieces_heard()?, "to [REDACTED:email] now");
    let guard = ExfilGuard::new().known(["maria@mailbox.org"])?.inputs(false);
    let guarded = spell.run(pieces()).middleware(guard.text_of("piece", |piece: &mut Piece| &mut piece.text)).await;
    assert!(guarded.is_err_and(|error| error.is_denied()));
    assert!(!pieces_heard()?.contains("box.org"));
    Ok(())
}

#[tokio::test]
async fn inputs_outputs_and_events_are_redacted_by_default() -> TestResult {
    let (root, heard) = (Emitter::new(), Heard::default());
    heard.on(&root)?;
    let seen = Arc::new(Mutex::new(Value::Null));
    let kept = Arc::clone(&seen);
    let work = instance(&root, "Tool", "work", move |value: Value, _: RunContext| {
        *kept.lock().expect("nobody panics here") = value;
        async { Ok(format!("pay with {CARD}")) }
    });
    let input = json!({"ann@mailbox.org": ["to", MAIL, 7]});
    assert_eq!(work.run(input).middleware(Redact::new()).await?, "pay with [REDACTED:card]");
    assert_eq!(*seen.lock().expect("nobody panics here"), json!({"ann@mailbox.org": ["to", "[REDACTED:email]", 7]}));
    let lines = heard.take();
    assert_eq!(lines.iter().filter(|line| line.contains("run.")).count(), 3);
    assert!(lines.iter().all(|line| !line.contains(CARD) && !line.contains(MAIL)), "{lines:#?}");
    Ok(())
}

#[tokio::test]
async fn secrets_added_by_listeners_and_output_middlewares_are_redacted() -> TestResult {
    let (root, heard) = (Emitter::new(), Heard::default());
    heard.on(&root)?;
    let added = map_output(|output: &mut Value, _: &RunContext| {
        *output = json!([MAIL]);
        Ok(())
    });
    let echo = echo(&root);
    let run = echo.run(json!("nothing")).middleware(Redact::new()).middleware(added).on_start(|start, _| {
        start.input = json!(CARD);
    });
    assert_eq!(run.await?, json!(["[REDACTED:email]"]));
    let lines = heard.take();
    assert!(lines.iter().all(|line| !line.contains(CARD) && !line.contains(MAIL)), "{lines:#?}");
    Ok(())
}

#[tokio::test]
async fn secrets_added_to_the_input_after_the_run_s_own_listeners_do_not_reach_the_work() -> TestResult {
    let root = Emitter::new();
    let echo = echo(&root);
    let secret = |input: &mut Value| input.as_array_mut().expect("a list").push(json!(MAIL));
    let at_start = move |start: &mut Start<Value, Value>, _: &EventMeta<'_>| secret(&mut start.input);
    root.on(Stage::Start, at_start)?;
    let passing = map_input(|input: &mut Value, _: &RunContext| {
        *input = json!([input, CARD]);
        Ok(())
    });
    let redact = Redact::new().parts([RunPart::Input]);
    let given = echo.run(json!([])).middleware(redact).middleware(passing).await?;
    assert_eq!(given, json!({"got": [["[REDACTED:email]"], "[REDACTED:card]"]}));
    Ok(())
}

#[tokio::test]
async fn listeners_work_and_output_middlewares_of_the_run_receive_only_redacted_values() -> TestResult {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let [starts, works, passes] = [(); 3].map(|()| Arc::clone(&seen));
    let note = |seen: &Mutex<Vec<Value>>, value: &Value| seen.lock().expect("nobody panics").push(value.clone());
    let tells = instance(&Emitter::new(), "Tool", "tells", move |input: Value, _: RunContext| {
        note(&works, &input);
        async { Ok(json!(MAIL)) }
    });
    let after = map_output(move |output: &mut Value, _: &RunContext| {
        note(&passes, output);
        Ok(())
    });
    let run = tells.run(json!(CARD)).middleware(Redact::new()).middleware(after);
    run.on_start(move |start, _| note(&starts, &start.input)).await?;
    let (card, mail) = (json!("[REDACTED:card]"), json!("[REDACTED:email]"));
    assert_eq!(*seen.lock().expect("nobody panics"), [card.clone(), card, mail]);
    Ok(())
}

#[tokio::test]
async fn an_output_set_at_start_is_redacted_in_all_events_of_the_run() -> TestResult {
    let (root, heard) = (Emitter::new(), Heard::default());
    heard.on(&root)?;
    let echo = echo(&root);
    // The redaction also has a listener of `start` that is called after the listener that sets the output.
    let run = echo.run(json!(CARD)).middleware(Redact::new()).on_start(|start, _| start.output = Some(json!([MAIL])));
    assert_eq!(run.await?, json!(["[REDACTED:email]"]));
    let lines = heard.take();
    assert!(lines[0].contains("start") && lines[0].contains("[REDACTED:email]"), "{lines:#?}");
    assert!(lines.iter().all(|line| !line.contains(CARD) && !line.contains(MAIL)), "{lines:#?}");
    Ok(())
}

/// A guard whose error contains an e-mail address.
#[derive(Debug)]
struct Talks;

impl<O: Op<In = Value>> Guard<O> for Talks {
    async fn check_input(&self, _: &Value, _: &RunContext) -> emitree_runtime::Result<()> {
        Err(Error::new(format!("{MAIL} is in it")))
    }
}

#[tokio::test]
async fn events_of_discarded_attempts_guards_and_approvals_are_redacted() -> TestResult {
    let (root, heard) = (Emitter::new(), Heard::default());
    heard.on(&root)?;
    let fails_once = instance(&root, "Tool", "fails", |value: Value, ctx: RunContext| async move {
        ctx.discard_attempt(format!("{CARD} is none"), json!({"to": MAIL})).await?;
        match ctx.attempt() {
            0 => Err(Error::retry_with(format!("{MAIL} again"), json!([CARD]))),
            _ => Ok(value),
        }
    });
    let approval = Approval::by(|_: Request| async { Ok(Decision::reject(format!("not {MAIL}"))) });
    heard.on(approval.emitter())?;
    let run = fails_once.run(json!("x")).middleware(Redact::new()).max_middleware_retries(1);
    run.layers(|stack| stack.guard_with(GuardOptions::new().evaluate_only(), Talks)).await?;
    let rejected = fails_once.run(json!("x")).middleware(Redact::new()).middleware(approval).await;
    assert_eq!(rejected.expect_err("it is rejected").explain(), "denied by approval: not [REDACTED:email]");
    let lines = heard.take();
    for name in ["tool.fails.attempt_discarded", "tool.fails.would_deny", "middleware.approval.rejected"] {
        let told: Vec<_> = lines.iter().filter(|line| line.contains(name)).collect();
        assert!(!told.is_empty() && told.iter().all(|line| line.contains("[REDACTED:")), "{name}: {lines:#?}");
    }
    assert!(lines.iter().all(|line| !line.contains(CARD) && !line.contains(MAIL)), "{lines:#?}");
    Ok(())
}

#[tokio::test]
async fn each_type_of_text_is_redacted_on_the_run_s_emitter_and_on_its_children() -> TestResult {
    let (root, heard) = (Emitter::new(), Heard::default());
    heard.on(&root)?;
    let say = instance(&root, "Tool", "say", |(): (), ctx: RunContext| async move {
        for emitter in [ctx.emitter().clone(), ctx.emitter().child("part")?] {
            emitter.emit("said", &mut MAIL.to_owned()).await?;
            emitter.emit("said", &mut MAIL.to_owned().into_boxed_str()).await?;
            emitter.emit("said", &mut Arc::<str>::from(MAIL)).await?;
            emitter.emit("said", &mut Cow::Borrowed(MAIL)).await?;
            emitter.emit("said", &mut json!([MAIL])).await?;
            let mut text = MAIL;
            emitter.emit("said", &mut text).await?;
            emitter.emit("said", &mut "no secret").await?;
        }
        Ok(())
    });
    say.run(()).middleware(Redact::new()).await?;
    let lines = heard.take();
    let said: Vec<_> = lines.iter().filter(|line| line.contains(".said ")).collect();
    assert_eq!(said.len(), 14, "{lines:#?}");
    assert!(lines.iter().all(|line| !line.contains(MAIL)), "{lines:#?}");
    let count = |text: &str| said.iter().filter(|line| line.ends_with(text)).count();
    assert_eq!(
        (count("\"[REDACTED:email]\""), count("\"[REDACTED]\""), count("\"no secret\"")),
        (8, 2, 2),
        "{said:#?}"
    );
    Ok(())
}

#[tokio::test]
async fn the_name_in_a_denial_or_halt_is_redacted_and_the_kind_of_the_error_stays() -> TestResult {
    let (root, heard) = (Emitter::new(), Heard::default());
    heard.on(&root)?;
    let by = "[REDACTED:email]".to_owned();
    let rows: [(fn() -> Error, ErrorKind); 2] = [
        (|| Error::denied(MAIL, "no"), ErrorKind::Denied { by: by.clone() }),
        (|| Error::halted(MAIL, "enough"), ErrorKind::Halted { by }),
    ];
    for (make, kind) in rows {
        let ends = instance(&root, "Tool", "ends", move |(): (), _: RunContext| async move { Err::<(), _>(make()) });
        let error = ends.run(()).middleware(Redact::new()).await.expect_err("it ends");
        assert_eq!(error.kind(), &kind);
    }
    let lines = heard.take();
    assert!(lines.iter().all(|line| !line.contains(MAIL)), "{lines:#?}");
    Ok(())
}

#[tokio::test]
async fn no_event_of_a_run_contains_a_group_id_with_a_secret() -> TestResult {
    let (root, heard) = (Emitter::new(), Heard::default());
    let notes = heard.clone();
    root.observe("*.*", move |_: &Any, meta| notes.note(meta.group_id().unwrap_or_default().to_owned()))?;
    echo(&root).run(json!(1)).group_id(MAIL).middleware(Redact::new()).await?;
    let ids = heard.take();
    assert!(ids.len() > 2 && ids.iter().all(|id| !id.contains(MAIL)), "{ids:?}");
    assert!(ids.contains(&"[REDACTED:email]".to_owned()), "{ids:?}");
    Ok(())
}

#[test]
fn a_sink_receives_group_ids_without_secrets() -> TestResult {
    let (root, memory) = (Emitter::new(), Memory::new());
    let handle = root.pipe_to(Redact::new().sink(memory.clone()))?;
    root.child_builder("tool").group_id(MAIL).build()?.emit_now("said", &mut 1)?;
    handle.flush_blocking().complete()?;
    let records = memory.records();
    assert_eq!(records[0].as_event().expect("an event").group_id.as_deref(), Some("[REDACTED:email]"));
    Ok(())
}

#[tokio::test]
async fn errors_are_redacted_and_keep_their_kind() {
    type Row = (fn() -> Error, &'static str);
    let rows: [Row; 4] = [
        (|| Error::new(format!("no {MAIL}")).detail("card", CARD), "no [REDACTED:email]\n  card: \"[REDACTED:card]\""),
        (
            || Error::from(std::io::Error::other(format!("lost {MAIL}"))).message("outer"),
            "outer\n  caused by: lost [REDACTED:email]",
        ),
        (|| Error::denied("policy", format!("{MAIL} may not")), "denied by policy: [REDACTED:email] may not"),
        (|| Error::aborted(format!("by {MAIL}")), "aborted: by [REDACTED:email]"),
    ];
    for (make, expected) in rows {
        let failing =
            instance(&Emitter::new(), "Tool", "fail", move |(): (), _: RunContext| async move { Err::<(), _>(make()) });
        let error = failing.run(()).middleware(Redact::new()).await.expect_err("it fails");
        assert_eq!((error.explain().as_str(), error.kind()), (expected, make().kind()));
    }
}

#[tokio::test]
async fn context_that_was_set_before_the_run_is_redacted() -> TestResult {
    let work = instance(&Emitter::new(), "Tool", "work", |(): (), ctx: RunContext| async move {
        Ok(ctx.context().get("user").cloned().unwrap_or_default())
    });
    let run = work.run(()).context(json!({"user": {"mail": MAIL}, "n": 1}));
    let user = run.middleware(Redact::new().parts([RunPart::Context])).await?;
    assert_eq!(user, json!({"mail": "[REDACTED:email]"}));
    Ok(())
}

/// Records the path, payload and context of each event below a root.
fn hears_all(root: &Emitter) -> Result<Heard, BoxError> {
    let heard = Heard::default();
    let notes = heard.clone();
    root.observe("*.*", move |event: &Any, meta| {
        let context = serde_json::to_string(meta.context()).expect("JSON");
        notes.note(format!("{} {} {context}", meta.path(), event.to_json()));
    })?;
    Ok(heard)
}

/// Returns a middleware that registers a failing listener of a stage.
fn fails_at(stage: Stage) -> impl Fn(&RunContext) -> Result<(), Error> {
    move |ctx: &RunContext| {
        let fails = move |_: &mut Any, _: &EventMeta<'_>| Err::<(), _>(format!("no {MAIL}").into());
        ctx.emitter().on(stage, fails)?;
        Ok(())
    }
}

fn binds(how: &'static str) -> impl Fn(&RunContext) -> Result<(), Error> {
    move |ctx: &RunContext| match how {
        "start" => fails_at(Stage::Start)(ctx),
        "success" => fails_at(Stage::Success)(ctx),
        "bind" => Err(Error::new(format!("no {MAIL}"))),
        _ => Ok(()),
    }
}

#[tokio::test(start_paused = true)]
async fn errors_from_an_abort_a_listener_or_bind_are_redacted_and_reported() -> TestResult {
    // If `bind` fails, the run emits no events, and the redaction does not emit its own event either.
    let rows = [
        ("abort", ErrorKind::Aborted, 1),
        ("start", ErrorKind::Failed, 1),
        ("success", ErrorKind::Failed, 1),
        ("bind", ErrorKind::Failed, 0),
    ];
    for (how, kind, told) in rows {
        let root = Emitter::new();
        let heard = hears_all(&root)?;
        let work = instance(&root, "Tool", "work", move |(): (), ctx: RunContext| async move {
            if how == "abort" {
                ctx.abort(format!("by {MAIL}"));
                std::future::pending::<()>().await;
            }
            Ok(())
        });
        let error = work.run(()).middleware(Redact::new()).middleware(binds(how)).await.expect_err(how);
        assert_eq!(error.kind(), &kind, "{how}");
        assert!(error.explain().contains("[REDACTED:email]") && !error.explain().contains(MAIL), "{how}: {error:?}");
        let lines = heard.take();
        assert!(lines.iter().all(|line| !line.contains(MAIL)), "{how}: {lines:#?}");
        let says = lines.iter().filter(|line| line.starts_with("middleware.redact.redacted"));
        assert_eq!(says.count(), told, "{how}: {lines:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn context_values_set_during_the_run_are_redacted() -> TestResult {
    let root = Emitter::new();
    let heard = hears_all(&root)?;
    let work = instance(&root, "Tool", "work", |(): (), ctx: RunContext| async move {
        ctx.set("mail", json!({"to": [MAIL, 7]}))?;
        ctx.emitter().set_context("card", CARD)?;
        ctx.emitter().emit("own", &mut 7).await?;
        Ok(ctx.get("mail"))
    });
    let mail = work.run(()).middleware(Redact::new().parts([RunPart::Context])).await?;
    assert_eq!(mail, Some(json!({"to": ["[REDACTED:email]", 7]})));
    let lines = heard.take();
    assert!(lines.iter().all(|line| !line.contains(MAIL) && !line.contains(CARD)), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains(r#""card":"[REDACTED:card]""#)), "{lines:#?}");
    let kept = work.run(()).middleware(Redact::new().parts([RunPart::Input])).await?;
    assert_eq!(kept, Some(json!({"to": [MAIL, 7]})));
    Ok(())
}

/// An event that can be deserialized again.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Sent {
    to: Vec<String>,
    #[serde(with = "hex_only")]
    id: String,
}

/// Accepts only letters from `a` to `f`.
mod hex_only {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
        let text = String::deserialize(deserializer)?;
        let is_hex = text.chars().all(|c| matches!(c, 'a'..='f'));
        if is_hex { Ok(text) } else { Err(D::Error::custom("that is no id")) }
    }
}

#[tokio::test]
async fn events_that_are_text_or_json_or_of_a_configured_type_are_redacted() -> TestResult {
    let root = Emitter::new();
    let heard = hears_all(&root)?;
    let work = instance(&root, "Tool", "work", |(): (), ctx: RunContext| async move {
        let emitter = ctx.emitter();
        emitter.emit("text", &mut format!("to {MAIL}")).await?;
        emitter.emit("value", &mut json!([{"to": MAIL}, 7])).await?;
        emitter.emit("sent", &mut Sent { to: vec![MAIL.to_owned()], id: "abc".to_owned() }).await?;
        let misfit = emitter.emit("sent", &mut Sent { to: Vec::new(), id: CARD.to_owned() }).await;
        Ok(misfit.err().map(|error| Error::from(error).explain()))
    });
    let misfit = work.run(()).middleware(Redact::new().event::<Sent>("sent")).await?.expect("it does not fit");
    assert!(misfit.contains("Sent` does not accept the replacement of a secret in `sent`: that is no id"), "{misfit}");
    assert!(!misfit.contains(CARD), "{misfit}");
    let lines = heard.take();
    assert!(lines.iter().all(|line| !line.contains(MAIL)), "{lines:#?}");
    let count = |place: &str| lines.iter().filter(|line| line.contains(place)).count();
    assert_eq!(
        [count("\"at\":\"text\""), count("\"at\":\"value\""), count("\"at\":\"sent\"")],
        [1, 1, 2],
        "{lines:#?}"
    );
    // With `parts`, other parts are not redacted.
    let elsewhere = Redact::new().event::<Sent>("sent").parts([RunPart::Input]);
    assert_eq!(work.run(()).middleware(elsewhere).await?, None);
    Ok(())
}

#[tokio::test]
async fn redacted_contains_the_place_kind_and_count_of_secrets_but_no_secret() -> TestResult {
    let (root, said) = (Emitter::new(), Heard::default());
    let heard = said.clone();
    let echo = echo(&root);
    let run = echo.run(json!({"to": [MAIL, "x@mailbox.org"], "maria@mailbox.org": CARD}));
    let run = run.middleware(Redact::new()).observe(
        "middleware.redact.redacted",
        move |event: &Redacted, meta: &EventMeta<'_>| {
            assert!(meta.trace().is_some());
            heard.note(format!("{:?} {} {} {}", event.part, event.at, event.kind, event.count));
        },
    );
    run.await?;
    let expected = ["Input /[REDACTED:email] card 1", "Input /to/0 email 1", "Input /to/1 email 1"];
    let mut said = said.take();
    said.sort();
    assert_eq!(said, expected);
    Ok(())
}

// M5
#[tokio::test]
async fn a_failing_listener_does_not_affect_a_redaction() -> TestResult {
    let (echo, redact, failing) = (echo(&Emitter::new()), Redact::new(), Failing::default());
    redact.emitter().on("redacted", failing.listener::<Redacted>())?;
    assert_eq!(echo.run(json!(MAIL)).middleware(redact).await?, json!({"got": "[REDACTED:email]"}));
    assert_eq!(failing.calls(), 1);
    Ok(())
}

#[tokio::test]
async fn kinds_strategies_and_patterns_are_configurable() -> TestResult {
    let text = format!("{MAIL} {CARD} TCK-123456 8.8.4.4");
    let rows = [
        (Redact::new().only([Kind::Email]), "[REDACTED:email] 4111 1111 1111 1111 TCK-123456 8.8.4.4"),
        (Redact::new().except([Kind::Email, Kind::Ip]), "maria@mailbox.org [REDACTED:card] TCK-123456 8.8.4.4"),
        (
            Redact::new().only([Kind::Ip]).pattern("ticket", "TCK-[0-9]{6}")?.strategy(Strategy::Mask),
            "maria@mailbox.org 4111 1111 1111 1111 ********3456 ********",
        ),
    ];
    for (redact, expected) in rows {
        assert_eq!(redact.text(&text), expected);
    }
    let redact = Redact::new().strategy(Strategy::Pseudonym).strategy_for(Kind::Card, Strategy::Mask);
    let [mail, ip] = [MAIL, "8.8.4.4"].map(|secret| redact.text(secret).into_owned());
    assert!(mail.starts_with("[EMAIL_") && ip.starts_with("[IP_"), "{mail} {ip}");
    assert_eq!(redact.text(&text), format!("{mail} ********1111 TCK-123456 {ip}"));
    Ok(())
}

#[test]
fn a_secret_has_equal_hashes_under_equal_keys_and_different_hashes_under_others() {
    let hashed = |key: &str| Redact::new().strategy(Strategy::Hash).hash_key(key).text(MAIL).into_owned();
    assert_eq!(hashed("a"), hashed("a"));
    assert_ne!(hashed("a"), hashed("b"));
    assert!(Redact::new().strategy(Strategy::Hash).text(MAIL).starts_with("[email:"));
}

#[test]
fn unbounded_long_empty_and_invalid_patterns_are_refused() {
    let refused = |regex| Redact::new().pattern("own", regex).map(drop).expect_err("it is refused");
    assert!(matches!(refused("a+"), PatternError::Long { longest: None, .. }));
    assert!(matches!(refused("a{1,641}"), PatternError::Long { longest: Some(641), .. }));
    assert!(matches!(refused("a?"), PatternError::Empty { .. }));
    assert!(matches!(refused("("), PatternError::Syntax { .. }));
    assert!(matches!(refused(r"(?:\w{1,20} ){1,7}"), PatternError::Size { .. } | PatternError::Long { .. }));
}

#[test]
fn the_summary_of_a_redaction_contains_its_settings_but_no_secret() {
    let redact = Redact::new().only([Kind::Email]).strategy(Strategy::Hash).hash_key("hunter2");
    let Summary::Text(summary) = redact.describe().summary() else { panic!("a text") };
    assert_eq!(summary, r#"Redact { kinds: ["email"], strategy: Hash, restore_output: false }"#);
    assert_eq!(redact.describe().layers().len(), 1);
}

#[tokio::test]
async fn pseudonyms_are_the_same_in_runs_below_and_restored_for_the_outermost_caller() -> TestResult {
    let root = Emitter::new();
    let inner = Arc::new(echo(&root));
    let redact = Redact::new().strategy(Strategy::Pseudonym).restore_output();
    let [maria, li, new] = [MAIL, "li@mailbox.org", "new@mailbox.org"].map(|mail| redact.text(mail).into_owned());
    let outer = instance(&root, "Tool", "outer", move |text: Value, _: RunContext| {
        let (inner, maria, li) = (Arc::clone(&inner), maria.clone(), li.clone());
        async move {
            assert_eq!(text, json!(maria));
            let answer = inner.run(json!([maria, MAIL, "li@mailbox.org"])).await?;
            assert_eq!(answer, json!({"got": [maria, maria, li]}));
            Ok(json!([text, li, "new@mailbox.org"]))
        }
    });
    for _ in 0..2 {
        let output = outer.run(json!(MAIL)).middleware(for_tree(redact.clone())).await?;
        // Secrets that first occur in the output are not restored.
        assert_eq!(output, json!([MAIL, "li@mailbox.org", new]));
    }
    Ok(())
}

#[test]
fn text_with_pseudonyms_is_not_redacted_again() {
    let redact = Redact::new().strategy(Strategy::Pseudonym).pseudonyms(&Pseudonyms::new()).hash_key("key");
    let texts = [
        format!("{MAIL} {CARD} 8.8.4.4 +49 170 1234567 DE89 3704 0044 0532 0130 123-45-6789"),
        "password=kV9x2LqPz7Rw4T and api_key: 'kV9x2LqPz7Rw4TmN8sYb'".to_owned(),
        "https://maria:kV9x2LqPz7Rw4T@host.org postgres://u:kV9x2LqPz7@db/x curl -u maria:kV9x2LqPz7 x".to_owned(),
        "Authorization: Bearer kV9x2LqPz7Rw4TmN8sYbkV9x2LqPz7Rw4TmN8sYb".to_owned(),
    ];
    for text in texts {
        let once = redact.text(&text).into_owned();
        assert_ne!(once, text);
        assert_eq!(redact.text(&once), once, "{text}");
        // Another mapping under another key leaves the pseudonyms as they are, too.
        assert_eq!(Redact::new().strategy(Strategy::Pseudonym).text(&once), once, "{text}");
    }
}

#[tokio::test]
async fn a_secret_of_an_earlier_output_stays_hidden_in_later_runs_with_its_mapping() -> TestResult {
    let redact = Redact::new().strategy(Strategy::Pseudonym).pseudonyms(&Pseudonyms::new()).restore_output();
    let look_up = runnable_fn("look_up", |(): (), _: RunContext| async move { Ok(MAIL.to_owned()) });
    let hidden = look_up.run(()).middleware(redact.clone()).await?;
    assert!(hidden.starts_with("[EMAIL_"), "{hidden}");
    let echo = echo(&Emitter::new());
    assert_eq!(echo.run(json!(hidden)).middleware(redact.clone()).await?, json!({"got": hidden}));
    // The caller names the secret: now it may be restored.
    let known = echo.run(json!([MAIL, hidden])).middleware(redact).await?;
    assert_eq!(known, json!({"got": [MAIL, MAIL]}));
    Ok(())
}

#[tokio::test]
async fn two_redactions_of_a_tree_with_separate_mappings_restore_only_for_the_outermost_caller() -> TestResult {
    let root = Emitter::new();
    let redact = |kind| Redact::new().only([kind]).strategy(Strategy::Pseudonym).restore_output();
    let (cards, mails) = (redact(Kind::Card), redact(Kind::Email).pseudonyms(&Pseudonyms::new()));
    let inner = Arc::new(echo(&root));
    let outer = instance(&root, "Tool", "outer", move |text: Value, _: RunContext| {
        let inner = Arc::clone(&inner);
        async move {
            let answer = inner.run(json!([text, MAIL, CARD])).await?.to_string();
            assert!(!answer.contains(MAIL) && !answer.contains(CARD), "{answer}");
            Ok(json!(answer))
        }
    });
    let text = format!("{MAIL} {CARD}");
    let answer = outer.run(json!(text)).middleware(for_tree(cards)).middleware(for_tree(mails)).await?;
    assert_eq!(answer, json!(json!({"got": [text, MAIL, CARD]}).to_string()));
    Ok(())
}

#[tokio::test]
async fn a_value_that_is_restored_for_one_caller_is_not_cached_for_another() -> TestResult {
    for inside in [false, true] {
        let (echo, cache) = (echo(&Emitter::new()), Cache::json().build()?);
        let redact = Redact::new().strategy(Strategy::Pseudonym).restore_output();
        let run = |email: &str| {
            let redact = redact.clone();
            let run = echo.run(json!(email));
            if inside {
                run.middleware(redact).middleware(cache.clone())
            } else {
                run.middleware(cache.clone()).middleware(redact)
            }
        };
        for email in ["maria@mailbox.org", "jose@mailbox.org", "maria@mailbox.org"] {
            assert_eq!(run(email).await?, json!({"got": email}), "the cache is inside: {inside}");
        }
        assert_eq!(cache.len(), 2);
    }
    Ok(())
}

#[tokio::test]
async fn an_interrupt_of_an_approval_passes_a_redaction_unchanged() -> TestResult {
    let run = echo(&Emitter::new());
    let redact = Redact::new().pattern("hex", "[0-9a-f]{32}")?;
    let run = run.run(json!("maria@mailbox.org")).middleware(Approval::by_interrupt()).middleware(redact);
    let error = run.await.expect_err("it is asked");
    let request = Request::of_interrupt(error.interrupt().expect("an interrupt"))?;
    assert_eq!(request.input, "[REDACTED:email]");
    Ok(())
}

#[tokio::test]
async fn each_of_100_concurrent_runs_restores_only_its_own_secrets() -> TestResult {
    let redact = Redact::new().strategy(Strategy::Pseudonym).restore_output();
    let first = redact.text("user0@mailbox.org").into_owned();
    let others = first.clone();
    let work = instance(&Emitter::new(), "Tool", "work", move |text: String, _: RunContext| {
        let first = first.clone();
        async move {
            tokio::task::yield_now().await;
            assert!(text.starts_with("to [EMAIL_"), "{text}");
            Ok(format!("{text}, not {first}"))
        }
    });
    let work = Arc::new(work.middleware(redact));
    let runs: Vec<_> = (0..100)
        .map(|n| {
            let work = Arc::clone(&work);
            tokio::spawn(async move { work.run(format!("to user{n}@mailbox.org")).await })
        })
        .collect();
    for (n, run) in runs.into_iter().enumerate() {
        let other = if n == 0 { "user0@mailbox.org" } else { &*others };
        assert_eq!(run.await??, format!("to user{n}@mailbox.org, not {other}"));
    }
    Ok(())
}

#[tokio::test]
async fn an_input_type_that_accepts_no_redacted_value_fails_the_run_without_the_secret() {
    let work = instance(&Emitter::new(), "Tool", "work", |ip: std::net::IpAddr, _: RunContext| async move { Ok(ip) });
    let error = work.run([8, 8, 4, 4].into()).middleware(Redact::new()).await.expect_err("it does not fit");
    assert!(error.explain().contains("[REDACTED:ip]") && !error.explain().contains("8.8.4.4"), "{}", error.explain());
}

#[tokio::test]
async fn a_redaction_can_be_a_layer_of_a_stack_for_text() -> TestResult {
    struct Say;
    impl Op for Say {
        type In = String;
        type Out = String;
    }
    let stack = Stack::<Say>::builder().layer(Redact::new()).build();
    let outer = runnable_fn("outer", move |text: String, ctx: RunContext| {
        let stack = stack.clone();
        async move { stack.call(&text, &ctx, |text, _| Box::pin(async move { Ok(format!("{text} {CARD}")) })).await }
    });
    assert_eq!(outer.run(MAIL.to_owned()).await?, "[REDACTED:email] [REDACTED:card]");
    Ok(())
}

#[tokio::test]
async fn records_of_a_redacting_sink_are_redacted_and_nothing_else() -> TestResult {
    let (root, redacted, plain) = (Emitter::new(), Memory::new(), Memory::new());
    let handles = [root.pipe_to(Redact::new().sink(redacted.clone()))?, root.pipe_to(plain.clone())?];
    assert_eq!(echo(&root).run(json!(MAIL)).context(json!({"ip": "8.8.4.4"})).await?, json!({"got": MAIL}));
    for handle in handles {
        handle.flush_blocking().complete()?;
    }
    let text = |memory: &Memory| serde_json::to_string(&memory.records()).expect("records");
    assert!(!text(&redacted).contains(MAIL) && !text(&redacted).contains("8.8.4.4"));
    assert!(text(&plain).contains(MAIL) && text(&plain).contains("8.8.4.4"));
    assert_eq!((redacted.paths(), redacted.len()), (plain.paths(), 3));
    Ok(())
}

/// R16
#[tokio::test]
async fn the_ids_of_traces_are_not_redacted() -> TestResult {
    let (root, memory) = (Emitter::new(), Memory::new());
    let handle = root.pipe_to(Redact::new().sink(memory.clone()))?;
    let echo = Arc::new(echo(&root));
    let parent = TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")?;
    let (inner, state) = (Arc::clone(&echo), "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
    let linked = parent.with_state(state);
    let outer = runnable_fn("outer", move |(): (), _: RunContext| {
        let (inner, linked) = (Arc::clone(&inner), linked.clone());
        async move { inner.run(json!("hello")).trace_parent(linked).await }
    });
    outer.run(()).middleware(for_tree(Redact::new())).await?;
    handle.close(std::time::Duration::MAX).await.complete()?;
    let records = memory.records();
    let trace = records.iter().find_map(|record| record.as_event()?.context.get("trace")).expect("a link");
    let link = json!({
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7", "flags": 1, "state": state,
    });
    assert_eq!(*trace, json!({"links": [link]}));
    Ok(())
}

/// E19
#[tokio::test]
async fn a_redacting_sink_asks_for_the_detail_of_its_inner_sink() -> TestResult {
    struct Heads(Memory);
    impl Sink for Heads {
        fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
            self.0.write(record)
        }

        fn detail(&self) -> DetailFn {
            Box::new(|_, _| Detail::Heads)
        }
    }
    let (root, memory) = (Emitter::new(), Memory::new());
    let handle = root.pipe_to(Redact::new().sink(Heads(memory.clone())))?;
    assert_eq!(echo(&root).run(json!("hello")).await?, json!({"got": "hello"}));
    handle.close(std::time::Duration::MAX).await.complete()?;
    let records = serde_json::to_string(&memory.records())?;
    assert!(!records.contains("hello") && records.contains("duration_ns"), "{records}");
    Ok(())
}

#[tokio::test]
async fn a_secret_split_over_records_is_redacted_separately_for_each_run() -> TestResult {
    let (root, memory) = (Emitter::new(), Memory::new());
    let handle = root.pipe_to(Redact::new().sink(memory.clone()).text_at("new_token", "/text"))?;
    let write = write(&root);
    let chunks = |parts: [&str; 4]| parts.map(ToOwned::to_owned).to_vec();
    let first = write.run(chunks(["write to mar", "ia@mail", "box.org or", " call"]));
    let second = write.run(chunks(["see 8.", "8.4.", "4 and", " wait"]));
    let (first, second) = futures_util::future::join(first, second).await;
    assert_eq!((first?, second?), (4, 4));
    root.emit("new_token", &mut Token { text: "maria@mail".into(), index: 9 }).await?;
    handle.close(std::time::Duration::from_secs(5)).await.complete()?;
    let records = memory.records();
    let tokens = |run: Option<uuid::Uuid>| -> String {
        let events = records.iter().filter_map(SinkRecord::as_event);
        let own = events.filter(|event| event.name() == "new_token" && event.trace.map(|trace| trace.run_id) == run);
        own.map(|event| event.payload::<Token>().expect("a token").text).collect()
    };
    let runs: Vec<_> =
        memory.records().iter().filter_map(|record| record.as_event()?.trace).map(|trace| trace.run_id).collect();
    let all: Vec<String> = [runs.first(), runs.iter().find(|run| Some(*run) != runs.first()), None]
        .into_iter()
        .map(|run| tokens(run.copied()))
        .collect();
    assert_eq!(all, ["write to [REDACTED:email] or call", "see [REDACTED:ip] and wait", "maria@mail"]);
    let ids: std::collections::HashSet<_> = records.iter().filter_map(|record| Some(record.as_event()?.id)).collect();
    assert_eq!(ids.len(), records.len());
    Ok(())
}

/// An event may contain several texts, such as the thought and the answer of a model.
#[tokio::test]
async fn each_text_of_an_event_is_redacted_separately_and_recorded_once() -> TestResult {
    let (root, memory) = (Emitter::new(), Memory::new());
    let sink = Redact::new().sink(memory.clone()).text_at("delta", "/think").text_at("delta", "/say");
    // Registering a text twice has no further effect.
    let handle = root.pipe_to(sink.text_at("delta", "/say"))?;
    let deltas = [
        json!({"think": "ask mar", "say": "see 8."}),
        json!({"think": "ia@mail", "n": 1}),
        json!({"think": "box.org or", "say": "8.4."}),
        json!({"say": "4 and on"}),
        json!({"think": " call", "say": " wait"}),
    ];
    for mut delta in deltas {
        root.emit("delta", &mut delta).await?;
    }
    handle.close(std::time::Duration::from_secs(5)).await.complete()?;
    let records = memory.records();
    let payloads: Vec<Value> = records.iter().filter_map(|record| record.as_event()?.payload::<Value>().ok()).collect();
    let all = |key: &str| payloads.iter().filter_map(|payload| payload[key].as_str()).collect::<String>();
    let expected = ["ask [REDACTED:email] or call", "see [REDACTED:ip] and on wait"];
    assert_eq!([all("think"), all("say")], expected, "{payloads:?}");
    Ok(())
}

/// Runs the tool, and returns the tokens that other listeners receive.
async fn written(chunks: Vec<String>, redact: Redact) -> Result<Vec<Token>, BoxError> {
    let (root, heard) = (Emitter::new(), Arc::new(Mutex::new(Vec::new())));
    let tokens = Arc::clone(&heard);
    // Other listeners on the run also receive the redacted text.
    let write = write(&root);
    let run = write.run(chunks).on("new_token", move |token: &mut Token, _| {
        tokens.lock().expect("nobody panics here").push(token.clone());
    });
    run.middleware(redact).await?;
    let tokens = heard.lock().expect("nobody panics here").clone();
    Ok(tokens)
}

#[tokio::test]
async fn a_secret_split_over_events_is_redacted_and_the_rest_is_emitted_as_a_last_event() -> TestResult {
    let chunks = ["write to mar", "ia@mail", "box.org or", " call"].map(ToOwned::to_owned);
    let heard = written(chunks.to_vec(), tokens()).await?;
    let texts: Vec<&str> = heard.iter().map(|token| token.text.as_str()).collect();
    assert_eq!(texts.concat(), "write to [REDACTED:email] or call");
    assert_eq!(heard.len(), 5);
    assert_eq!(heard[4].index, 3, "a copy of the last one");
    Ok(())
}

#[tokio::test]
async fn held_back_text_is_emitted_when_a_run_fails_or_is_dropped() -> TestResult {
    let (root, heard) = (Emitter::new(), Heard::default());
    let failing = instance(&root, "Tool", "fail", |waits: bool, ctx: RunContext| async move {
        ctx.emitter().emit("new_token", &mut Token { text: "half a wor".into(), index: 0 }).await?;
        if waits {
            std::future::pending::<()>().await;
        }
        Err::<(), _>(Error::new("it broke"))
    });
    let all = heard.clone();
    root.observe("*.*", move |event: &Any, meta| {
        if let Some(token) = event.downcast_ref::<Token>() {
            all.note(token.text.clone());
        } else if Stage::of(meta) == Some(Stage::Error) {
            all.note("error".into());
        }
    })?;
    failing.run(false).middleware(tokens()).await.expect_err("it breaks");
    assert_eq!(heard.take(), ["half a", " wor", "error"]);
    let dropped = tokio::time::timeout(std::time::Duration::ZERO, failing.run(true).middleware(tokens())).await;
    assert!(dropped.is_err());
    emitree_runtime::wait_for_ends(std::time::Duration::from_secs(5)).await;
    let lines = heard.take();
    assert_eq!(lines.iter().filter(|line| *line != "error").map(String::as_str).collect::<String>(), "half a wor");
    Ok(())
}

#[tokio::test]
async fn held_back_text_of_a_discarded_attempt_is_not_emitted() -> TestResult {
    let (root, heard) = (Emitter::new(), Heard::default());
    let again = instance(&root, "Tool", "again", |(): (), ctx: RunContext| async move {
        ctx.emitter().emit("new_token", &mut Token { text: format!("try {}", ctx.attempt()), index: 0 }).await?;
        if ctx.attempt() == 0 { Err(Error::retry("not yet")) } else { Ok(()) }
    });
    let all = heard.clone();
    let run = again.run(()).on("new_token", move |token: &mut Token, _| all.note(token.text.clone()));
    run.middleware(tokens()).max_middleware_retries(1).await?;
    assert_eq!(heard.take(), ["try", "try", " 1"]);
    Ok(())
}

#[tokio::test]
async fn a_private_key_block_is_withheld_to_its_end_or_up_to_16_kib() -> TestResult {
    let begin = format!("-----BEGIN {}-----\n", "PRIVATE KEY");
    let line = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ\n".to_owned();
    let mut chunks = vec!["key: ".to_owned(), begin.clone()];
    chunks.extend(std::iter::repeat_n(line.clone(), 20));
    let never_ends: Vec<String> = chunks.iter().cloned().chain(std::iter::repeat_n(line, 400)).collect();
    chunks.extend(["-----END PRIVATE".to_owned(), " KEY----- done".to_owned()]);
    let text = |heard: Vec<Token>| heard.into_iter().map(|token| token.text).collect::<String>();
    assert_eq!(text(written(chunks, tokens()).await?), "key: [REDACTED:private_key] done");
    let left = text(written(never_ends.clone(), tokens()).await?);
    let bound = never_ends.concat().len() - "key: ".len() - (begin.len() - 1) - 16 * 1024;
    assert_eq!(left.len(), "key: [REDACTED:private_key]".len() + bound);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// However a text is split, other listeners receive the same redacted text.
    #[test]
    fn text_split_over_events_is_redacted_like_the_whole_text(sizes in prop::collection::vec(1_usize..=64, 1..60), shift in 0_usize..20) {
        let text = format!("{}mail {MAIL}, card {CARD} and é {MAIL}; {}", "x ".repeat(shift), "done ".repeat(9));
        let (mut chunks, mut rest) = (Vec::new(), text.as_str());
        for size in sizes {
            let (chunk, after) = rest.split_at(rest.ceil_char_boundary(size.min(rest.len())));
            chunks.push(chunk.to_owned());
            rest = after;
        }
        chunks.push(rest.to_owned());
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let heard = runtime.block_on(written(chunks, tokens())).expect("it runs");
        let all: String = heard.into_iter().map(|token| token.text).collect();
        prop_assert_eq!(all, Redact::new().text(&text));
    }
}

/// A stranger's event: a number, and a text of a user. The fields are in the order of their names, so that the JSON is the
/// same if another crate of the build enables `serde_json/preserve_order`.
#[derive(Clone, Debug, Serialize)]
struct Noted {
    at: u32,
    text: String,
}

impl Event for Noted {
    const NAME: EventName = EventName::new("noted");
}

impl UserTexts for Noted {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.text.user_texts(change);
    }
}

#[tokio::test]
async fn the_own_events_of_any_middleware_are_redacted_on_its_emitter_and_on_the_run() -> TestResult {
    let events = OwnEvents::new(Namespace::new("middleware.notes"));
    let (heard, noting) = (Heard::default(), events.clone());
    heard.on(events.emitter())?;
    let notes = move |ctx: &RunContext| {
        let events = noting.clone();
        ctx.emitter().observe_async("start", move |_: &Start<Value, Value>, _| {
            let (events, ctx) = (events.clone(), RunContext::current().expect("in a run"));
            Box::pin(async move {
                events.emit(&ctx, || Noted { text: format!("mail to {MAIL}"), at: 1 }).await;
                events.emit_now(&ctx, || Noted { text: format!("mail to {MAIL}"), at: 2 });
                Ok(())
            })
        })?;
        Ok(())
    };
    let on_run = heard.clone();
    let echo = echo(&Emitter::new());
    let run = echo.run(json!("hi")).middleware(Redact::new()).middleware(notes);
    let run = run
        .observe("middleware.notes.noted", move |event: &Noted, _| on_run.note(format!("{} {}", event.at, event.text)));
    run.await?;
    let path = r#"middleware.notes.noted {"at":1,"text":"mail to [REDACTED:email]"}"#;
    assert_eq!(
        heard.take(),
        [path, "1 mail to [REDACTED:email]", &path.replace("\"at\":1", "\"at\":2"), "2 mail to [REDACTED:email]"]
    );
    Ok(())
}
