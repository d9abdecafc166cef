//! Globs and regexes in any number and of any length: an accepted pattern is matched, and a pattern that cannot be
//! compiled is refused at registration (E4).

mod support;

use emitree_emitter::{BoxError, Emitter, EventMeta, IntoMatcher, Matcher, MatcherError, Subscription};
use proptest::prelude::{ProptestConfig, Strategy, prop_assert_eq, prop_oneof, proptest};
use regex::Regex;

use crate::support::{Any, Recorder, TestResult};

/// The longest pattern that is accepted.
const LONGEST: usize = 16 * 1024;

fn ignore(_: &mut Any, _: &EventMeta<'_>) {}

/// E4.
#[test]
fn a_pattern_that_is_too_long_is_refused_at_registration() -> TestResult {
    let emitter = Emitter::new();
    for length in [LONGEST + 1, 200_000] {
        let long = "?".repeat(length);
        let refusals: [BoxError; 5] = [
            emitter.on(&long, ignore).expect_err("a glob").into(),
            Matcher::regex(&long.replace('?', "x")).expect_err("a regex").into(),
            emitter.on(Regex::new(&long.replace('?', "x"))?, ignore).expect_err("a ready-made regex").into(),
            emitter.stream(&long, 1).expect_err("a stream").into(),
            emitter.off_matching(&long).expect_err("it cannot have been registered").into(),
        ];
        for refusal in refusals {
            let text = refusal.to_string();
            assert!(text.contains(&format!("{length} bytes")) && text.contains("at most 16384"), "{text}");
            assert!(text.len() < 150, "it quotes only the beginning: {text}");
        }
    }
    emitter.emit_now("x", &mut ())?;
    assert_eq!(emitter.listener_count(), 0);
    Ok(())
}

/// E4: the globs are of different kinds. With six listeners of each, there are enough patterns for a set.
#[test]
fn the_longest_patterns_match_alone_and_together() -> TestResult {
    let long = |unit: &str| unit.repeat((LONGEST - 4) / unit.len());
    let units = ["?", "[!a-c]", "{a,*b}"];
    let globs = units.map(|unit| format!("{{x,{}}}", long(unit)));
    for how_often in [1, 3, 6] {
        let (emitter, recorder) = (Emitter::new(), Recorder::new());
        for glob in &globs {
            for _ in 0..how_often {
                emitter.on(glob, recorder.hears("glob"))?;
            }
        }
        emitter.emit_now("x", &mut ())?;
        assert_eq!(recorder.take().len(), how_often * globs.len());
        emitter.emit_now("y", &mut ())?;
        recorder.expect([]);
    }
    Ok(())
}

/// E4: each pattern compiles alone, but all patterns together would exceed the limit of a set.
#[test]
fn regexes_that_are_too_large_for_one_set_still_match() -> TestResult {
    let (emitter, recorder) = (Emitter::new(), Recorder::new());
    for i in 0..20 {
        emitter.on(Matcher::regex(&format!(r"^x$|^y{i}\w{{60}}$"))?, recorder.hears(i))?;
    }
    emitter.emit_now("x", &mut ())?;
    assert_eq!(recorder.take(), (0..20).map(|i| format!("{i} x")).collect::<Vec<_>>());
    emitter.emit_now("y7", &mut ())?;
    recorder.expect([]);
    Ok(())
}

/// E4: sets are compiled in steps while patterns are registered.
#[test]
fn listeners_of_thousands_of_patterns_are_called_in_order_of_registration() -> TestResult {
    let (emitter, recorder) = (Emitter::new(), Recorder::new());
    for i in 0..5000 {
        emitter.on(format!("tool_{}*", i % 1000), recorder.hears(i))?;
    }
    emitter.emit_now("tool_7", &mut ())?;
    recorder.expect(["7 tool_7", "1007 tool_7", "2007 tool_7", "3007 tool_7", "4007 tool_7"]);
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Adds this many patterns for names that begin with this letter.
    On(usize, u8),
    /// Removes one in this many patterns.
    Off(usize),
    Emit(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1..40_usize, 0..4_u8).prop_map(|(many, letter)| Step::On(many, letter)),
        2 => (1..5_usize).prop_map(Step::Off),
        4 => (0..4_u8).prop_map(Step::Emit),
    ];
    proptest::collection::vec(step, 1..25)
}

fn letter(letter: u8) -> char {
    char::from(b'a' + letter)
}

/// Returns a pattern. Half of the patterns are globs of names, a quarter are globs of paths, and a quarter are regexes.
fn pattern(i: usize, begins: u8) -> Result<Matcher, MatcherError> {
    let begins = letter(begins);
    match i % 4 {
        0 | 1 => format!("{begins}*").into_matcher(),
        2 => format!("**.{begins}*").into_matcher(),
        _ => Matcher::regex(&format!(r"\.{begins}\w*$")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 48, ..ProptestConfig::default() })]

    /// E4, E10: whichever sets the patterns are in, a listener receives exactly the events that its pattern matches.
    #[test]
    fn patterns_that_are_added_and_removed_match_the_same_events_as_their_model(steps in steps()) {
        let (emitter, recorder) = (Emitter::new().child("app").unwrap(), Recorder::new());
        let (mut model, mut next) = (Vec::<(usize, u8, Subscription)>::new(), 0);
        for step in steps {
            match step {
                Step::On(many, begins) => for _ in 0..many {
                    let matcher = pattern(next, begins).unwrap();
                    model.push((next, begins, emitter.observe(matcher, recorder.sees(next)).unwrap()));
                    next += 1;
                },
                Step::Off(one_in) => model.retain(|(i, _, subscription)| i % one_in != 0 || !subscription.off()),
                Step::Emit(begins) => {
                    let name = format!("{}_x", letter(begins));
                    emitter.emit_now(&name, &mut ()).unwrap();
                    let heard = model.iter().filter(|(_, other, _)| *other == begins);
                    let expected: Vec<_> = heard.map(|(i, ..)| format!("{i} app.{name}")).collect();
                    prop_assert_eq!(recorder.take(), expected);
                }
            }
        }
    }
}
