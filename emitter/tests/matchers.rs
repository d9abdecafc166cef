//! The events that each matcher takes (E4): the table in the documentation of `Matcher`, row by row, alone and in sets.

mod support;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use emitree_emitter::{
    AnyEvent, BoxError, Emitter, EventMeta, EventName, IntoMatcher, ListenError, Matcher, MatcherError, Options,
    Subscription, matcher_fn,
};
use proptest::prelude::*;
use regex::{Regex, RegexBuilder};

use crate::support::{Recorder, TestResult, emit, run_of, run_within};

/// `backend.chat` with a run, and in that run a run of `tool` and another run of `backend.chat`.
struct World {
    root: Emitter,
    backend: Emitter,
    chat: Emitter,
    /// Another emitter with the namespace of `chat`.
    twin: Emitter,
    run: Emitter,
    tool: Emitter,
    again: Emitter,
}

impl World {
    fn new() -> Self {
        let root = Emitter::new();
        let backend = root.child("backend").expect("a name");
        let (chat, twin) = (backend.child("chat").expect("a name"), backend.child("chat").expect("a name"));
        let run = run_of(&chat);
        let tool = run_within(&root.child("tool").expect("a name"), &run);
        let again = run_within(&chat, &run);
        Self { root, backend, chat, twin, run, tool, again }
    }

    /// Emits `start` and `new_token` on every emitter, and `run.start` on the run. Returns `emitter:name` for each
    /// event that a listener on `at` receives.
    fn heard(&self, at: impl Fn(&Self) -> &Emitter, options: Options, matcher: Matcher) -> Vec<String> {
        let recorder = Recorder::new();
        let named = self.named();
        let note = recorder.clone();
        let who =
            move |source: &Emitter| named.iter().find(|(_, emitter)| emitter == source).map_or("?", |(name, _)| *name);
        let subscription = at(self)
            .with(options)
            .on(matcher, move |_: &mut dyn AnyEvent, meta| {
                note.note(format!("{}:{}", who(meta.source()), meta.emitted_name()));
            })
            .expect("a matcher");
        for (_, emitter) in self.named() {
            emit(&emitter, "start");
            emit(&emitter, "new_token");
        }
        emit(&self.run, "run.start");
        subscription.off();
        recorder.take()
    }

    fn named(&self) -> [(&'static str, Emitter); 7] {
        let Self { root, backend, chat, twin, run, tool, again } = self;
        [
            ("root", root),
            ("backend", backend),
            ("chat", chat),
            ("twin", twin),
            ("run", run),
            ("tool", tool),
            ("again", again),
        ]
        .map(|(name, emitter)| (name, emitter.clone()))
    }
}

#[track_caller]
fn check(at: fn(&World) -> &Emitter, options: Options, matcher: impl IntoMatcher, expected: &[&str]) {
    let heard = World::new().heard(at, options, matcher.into_matcher().expect("a matcher"));
    assert_eq!(heard, expected);
}

const BY_DEFAULT: Options = Options::new();

/// E4, row `"new_token"`.
#[test]
fn a_name_matches_own_events_with_that_name() {
    check(|w| &w.chat, BY_DEFAULT, "new_token", &["chat:new_token", "run:new_token", "again:new_token"]);
    check(|w| &w.backend, BY_DEFAULT, "new_token", &["backend:new_token"]);
    check(|w| &w.run, BY_DEFAULT, EventName::new("new_token"), &["run:new_token"]);
    check(|w| &w.chat, BY_DEFAULT, String::from("token"), &[]);
}

/// E4, row `"backend.chat.start"`.
#[test]
fn a_path_matches_exactly_that_path_including_events_of_nested_runs() {
    let everywhere = ["chat:start", "twin:start", "run:start", "again:start"];
    check(|w| &w.root, BY_DEFAULT, "backend.chat.start", &everywhere);
    check(|w| &w.run, BY_DEFAULT, "backend.chat.start", &["run:start", "again:start"]);
    check(|w| &w.root, BY_DEFAULT, "chat.start", &[]);
    check(|w| &w.root, BY_DEFAULT, EventName::new("backend.chat.run.start"), &["run:run.start"]);
}

/// E4, row `"*"`. An event with a dotted name is not an own event of any emitter.
#[test]
fn a_star_matches_every_own_event() {
    let own = ["chat:start", "chat:new_token", "run:start", "run:new_token", "again:start", "again:new_token"];
    check(|w| &w.chat, BY_DEFAULT, "*", &own);
    check(|w| &w.run, BY_DEFAULT, Matcher::own(), &["run:start", "run:new_token"]);
}

/// E4, row `"*.*"`.
#[test]
fn star_dot_star_matches_every_event_that_reaches_the_emitter() {
    let all = ["run:start", "run:new_token", "tool:start", "tool:new_token", "again:start", "again:new_token"];
    check(|w| &w.run, BY_DEFAULT, "*.*", &[&all[..], &["run:run.start"]].concat());
    check(|w| &w.run, BY_DEFAULT, Matcher::every(), &[&all[..], &["run:run.start"]].concat());
    check(|w| &w.twin, BY_DEFAULT, "*.*", &["twin:start", "twin:new_token"]);
}

/// E4, row `"new_*"`.
#[test]
fn a_glob_without_a_dot_matches_names_of_own_events() {
    check(|w| &w.run, BY_DEFAULT, "new_*", &["run:new_token"]);
    check(|w| &w.chat, BY_DEFAULT, "{start,finish}", &["chat:start", "run:start", "again:start"]);
    check(|w| &w.root, BY_DEFAULT, "**", &["root:start", "root:new_token"]);
}

/// E4, row `"backend.**.start"`.
#[test]
fn a_glob_with_a_dot_matches_paths_including_events_of_nested_runs() {
    let all = ["backend:start", "chat:start", "twin:start", "run:start", "again:start", "run:run.start"];
    check(|w| &w.root, BY_DEFAULT, "backend.**.start", &all);
    check(|w| &w.run, BY_DEFAULT, "*.start", &["tool:start"]);
}

/// E4, row `Regex`.
#[test]
fn a_regex_matches_anywhere_in_the_path_including_events_of_nested_runs() -> TestResult {
    check(|w| &w.run, BY_DEFAULT, Regex::new("oo")?, &["tool:start", "tool:new_token"]);
    check(|w| &w.run, BY_DEFAULT, Matcher::regex("^tool.*t$")?, &["tool:start"]);
    let insensitive = RegexBuilder::new("TOOL.START").case_insensitive(true).build()?;
    check(|w| &w.run, BY_DEFAULT, insensitive, &["tool:start"]);
    Ok(())
}

/// E4: the row `Fn(&EventMeta) -> bool` of the table.
#[test]
fn a_function_matches_events_for_which_it_returns_true_except_in_nested_runs() {
    let short = |meta: &EventMeta<'_>| meta.name().len() == 5;
    check(|w| &w.run, BY_DEFAULT, short, &["run:start", "run:run.start"]);
    let by_source = matcher_fn(|meta| meta.path().starts_with("tool."));
    check(|w| &w.root, BY_DEFAULT, by_source, &["tool:start", "tool:new_token"]);
}

/// E4: *nested* is relative to the runs of the listening emitter. On an emitter that has no runs and is in no run, the
/// option has no effect.
#[test]
fn the_nested_option_overrides_the_default_of_the_matcher() {
    let (yes, no) = (Options::new().nested(true), Options::new().nested(false));
    check(|w| &w.run, no, "*.*", &["run:start", "run:new_token", "run:run.start"]);
    check(|w| &w.run, no, "backend.chat.start", &["run:start"]);
    check(
        |w| &w.run,
        yes,
        |meta: &EventMeta<'_>| meta.name() == "start",
        &["run:start", "tool:start", "again:start", "run:run.start"],
    );
    check(|w| &w.run, yes, "start", &["run:start"]);
    check(|w| &w.backend, no, "backend.chat.start", &["chat:start", "twin:start", "run:start", "again:start"]);
}

/// The rows of the table of nested events in the documentation of `Matcher`.
fn documented() -> Vec<[Vec<&'static str>; 7]> {
    let rows = include_str!("../src/matching/matcher.rs").lines().skip_while(|line| !line.contains("| on the run |"));
    let rows = rows.skip(2).map_while(|line| line.strip_prefix("/// | ")?.strip_suffix(" |"));
    let cells = |cell: &'static str| cell.split(", ").map(|word| word.trim_matches('`')).collect();
    rows.map(|row| row.split(" | ").map(cells).collect::<Vec<_>>().try_into().expect("seven columns")).collect()
}

/// Runs of three instances, each started in the run before it. The `columns` are the emitters that the table names.
struct Nest {
    run: Emitter,
    nested: Emitter,
    columns: [Emitter; 5],
}

impl Nest {
    fn new() -> Self {
        let root = Emitter::new();
        let child = |of: &Emitter, name: &str| of.child(name).expect("a name");
        let backend = child(&root, "backend");
        let instance = child(&backend, "chat");
        let above = run_of(&child(&root, "desk"));
        let run = run_within(&instance, &above);
        let nested = run_within(&child(&root, "tool"), &run);
        Self { nested, columns: [run.clone(), instance, backend, root, above], run }
    }

    /// Emits on the run and on the run nested in it. Returns the events that a listener on one of the columns takes.
    fn heard(&self, column: usize, options: Options, matcher: Matcher) -> Vec<String> {
        let recorder = Recorder::new();
        let listens = self.columns[column].with(options).on(matcher, recorder.hears("")).expect("a matcher");
        emit(&self.run, "new_token");
        emit(&self.nested, "new_token");
        listens.off();
        recorder.take()
    }
}

fn documented_matcher(text: &str) -> Matcher {
    match text {
        "matcher_fn" => matcher_fn(|_| true).into_matcher(),
        "Regex" => Matcher::regex("new"),
        _ => text.trim_matches('"').into_matcher(),
    }
    .expect("a matcher")
}

/// E4: each cell of the table is checked in three ways: with a single listener, with enough listeners for a cache of
/// matches, and with a pipe.
#[test]
fn the_table_of_nested_events_in_the_documentation_of_matcher_is_correct() {
    let (own, nested) = (" backend.chat.new_token", " tool.new_token");
    let mut cells = 0;
    for [matchers, options, columns @ ..] in documented() {
        for (matcher, option) in matchers.iter().flat_map(|matcher| options.iter().map(move |option| (matcher, option)))
        {
            let given = match *option {
                "default" => BY_DEFAULT,
                option => BY_DEFAULT.nested(option == "true"),
            };
            for (at, takes) in columns.iter().enumerate() {
                let expected: &[&str] = match takes[..] {
                    ["all"] => &[own, nested],
                    ["own"] => &[own],
                    _ => &[],
                };
                // The exact path matches only the event of the nested run.
                let is_path = *matcher == "\"tool.new_token\"";
                let expected: Vec<_> = expected.iter().filter(|path| !is_path || **path == nested).collect();
                let nest = Nest::new();
                let heard = |nest: &Nest| nest.heard(at, given, documented_matcher(matcher));
                assert_eq!(heard(&nest).iter().collect::<Vec<_>>(), expected, "{matcher} {option} column {at}");
                (0..10).for_each(|_| drop(nest.columns[at].on("new_*", |_: &mut dyn AnyEvent, _| ())));
                assert_eq!(heard(&nest).iter().collect::<Vec<_>>(), expected, "{matcher} {option} column {at}, many");
                nest.run.pipe(&Emitter::new());
                assert_eq!(heard(&nest).iter().collect::<Vec<_>>(), expected, "{matcher} {option} column {at}, piped");
                cells += 1;
            }
        }
    }
    assert_eq!(cells, 5 * 3 * 8, "eight matchers in three ways");
}

/// E4: a run may be below another run because it was started in that run, or because of its place in the tree.
#[test]
fn events_of_runs_below_an_instances_runs_are_nested_for_the_instance() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let instance = root.child("a")?;
    let run = run_of(&instance);
    let part = run.child("part")?;
    let deep = run_within(&root.child("deep")?, &run_within(&root.child("tool")?, &run));
    instance.on(|_: &EventMeta<'_>| true, recorder.hears("function"))?;
    instance.with(Options::new().nested(false)).on("*.*", recorder.hears("not nested"))?;
    for nested in [&deep, &run_of(&part), &run_within(&part, &run), &run_within(&instance.child("b")?, &run)] {
        emit(nested, "start");
        recorder.expect([]);
    }
    // An emitter below a run's emitter is in the run. A run of an instance is not nested for the instance, wherever it
    // was started.
    let again = run_within(&instance, &deep);
    for own in [&part, &again, &again.child("part")?] {
        emit(own, "start");
        assert_eq!(recorder.take().len(), 2, "{own:?}");
    }
    // Events of emitters below the instance in the tree, but outside its runs, are not nested for the instance either.
    emit(&instance.child("b")?, "start");
    emit(&run_of(&instance.child("b")?), "start");
    assert_eq!(recorder.take().len(), 4);
    Ok(())
}

/// E4: several ways lead to an instance, and one way leads through its run.
#[test]
fn an_event_of_a_nested_run_is_nested_for_an_instance_on_every_way_to_the_instance() -> TestResult {
    let (recorder, root) = (Recorder::new(), Emitter::new());
    let (backend, tool) = (root.child("backend")?, root.child("tool")?);
    let chat = backend.child("chat")?;
    backend.with(Options::new().nested(false)).on("*.*", recorder.hears("not nested"))?;
    backend.on("*.*", recorder.hears("every"))?;
    // The run of `backend` was started in a run of `chat`, and a run of a tool was started in the run of `backend`.
    let in_chat = run_within(&backend, &run_of(&chat));
    emit(&run_within(&tool, &in_chat), "start");
    recorder.expect(["every tool.start"]);
    // A run of `chat` was started in another run of `backend`.
    emit(&run_within(&chat, &run_of(&backend)), "start");
    recorder.expect(["every backend.chat.start"]);
    Ok(())
}

/// E4: an emitter below a run's emitter is in the run.
#[test]
fn events_of_emitters_below_a_runs_emitter_are_not_nested_in_the_run() -> TestResult {
    let (recorder, instance) = (Recorder::new(), Emitter::new().child("a")?);
    let run = run_of(&instance);
    let part = run.child("part")?;
    run.with(Options::new().nested(false)).on("*.*", recorder.hears("run"))?;
    part.with(Options::new().nested(false)).on("*.*", recorder.hears("part"))?;
    emit(&part, "start");
    recorder.expect(["part a.part.start", "run a.part.start"]);
    // Events of a run of `part` are nested for the run that `part` belongs to, but not for `part` itself.
    emit(&run_within(&part, &run), "start");
    recorder.expect(["part a.part.start"]);
    Ok(())
}

/// E4: the event is nested for the run that it is piped to, because its source is outside that run.
#[test]
fn an_event_that_is_piped_to_a_run_is_nested_there_and_not_an_own_event() -> TestResult {
    let (recorder, world) = (Recorder::new(), World::new());
    let elsewhere = run_of(&Emitter::new().child("elsewhere")?);
    world.run.pipe(&elsewhere);
    elsewhere.on("*", recorder.hears("own"))?;
    elsewhere.on("*.*", recorder.hears("every"))?;
    elsewhere.with(Options::new().nested(false)).on("*.*", recorder.hears("not nested"))?;
    emit(&world.run, "start");
    recorder.expect(["every backend.chat.start"]);
    Ok(())
}

/// Globs, and paths that they match.
const HEARD: [(&str, &str); 40] = [
    ("*.start", "a.start"),
    ("a.*", "a.start"),
    ("a.*.start", "a.b.start"),
    ("a.**.start", "a.start"),
    ("a.**.start", "a.b.c.start"),
    ("**.start", "start"),
    ("**.start", "a.b.start"),
    ("a.**", "a.start"),
    ("a.**", "a.b.start"),
    ("a?c.d", "abc.d"),
    ("a?c", "abc"),
    ("a[bc]d.e", "abd.e"),
    ("a[!b]c.d", "axc.d"),
    ("a[^b]c.d", "axc.d"),
    ("a[0-9]c.d", "a5c.d"),
    ("a[a-c-]c.d", "abc.d"),
    ("a[+-9]c.d", "a5c.d"),
    ("a[+-9]c", "a5c"),
    ("a[--0]c.d", "a0c.d"),
    ("a[.x]c.d", "axc.d"),
    ("a[!+-9]c.d", "axc.d"),
    ("a[!b-]c.d", "axc.d"),
    ("a[!]]c.d", "axc.d"),
    ("a[]x]c.d", "axc.d"),
    ("{a,b}.start", "b.start"),
    ("{a.b,c}.start", "a.b.start"),
    ("{a.b,c}.start", "c.start"),
    ("{a,b{c,d}}.x", "bd.x"),
    ("a.{new_*,start}", "a.new_token"),
    ("{start,finish}", "finish"),
    ("new_*", "new_"),
    (r"\a.start", "a.start"),
    (r"a\.start", "a.start"),
    (r"a\.st*", "a.start"),
    ("*", "start"),
    ("[s]tart", "start"),
    ("*.*.*", "a.b.c"),
    ("a.b*d.e", "a.bcd.e"),
    ("**.b.**", "a.b.c"),
    ("*_[0-9][0-9]", "step_42"),
];

/// Globs, and paths that they do not match.
const UNHEARD: [(&str, &str); 25] = [
    ("x[!!]c.d", "x.c.d"),
    ("*.start", "a.b.start"),
    ("*.start", "start"),
    ("a.*", "a.b.start"),
    ("a.*.start", "a.start"),
    ("a.**", "b.start"),
    ("a?c", "ac"),
    ("?.x?c.d", "a.x.c.d"),
    ("x[.]c.d", "x.c.d"),
    ("x[!b]c.d", "x.c.d"),
    ("x[^b]c.d", "x.c.d"),
    ("x[!b-]c.d", "x.c.d"),
    ("x[!-]c.d", "x.c.d"),
    ("x[!]]c.d", "x.c.d"),
    ("x[+-9]c.d", "x.c.d"),
    ("x[!+-9]c.d", "x.c.d"),
    ("x[!+-9]c.d", "x5c.d"),
    ("x[--0]c.d", "x.c.d"),
    ("x[ -~]c.d", "x.c.d"),
    ("a[!b]c.d", "abc.d"),
    ("{a,b}.start", "c.start"),
    ("new_*", "renew_1"),
    (r"\*.start", "a.start"),
    ("A.start", "a.start"),
    ("start*", "a.start_it.b"),
];

/// E4: globs have the syntax of globset with `.` as the separator, which `*`, `?` and `[…]` do not match.
#[test]
fn globs_treat_the_dot_as_the_separator() {
    for (glob, path) in HEARD {
        assert!(takes(glob, path), "{glob} takes {path}");
    }
    for (glob, path) in UNHEARD {
        assert!(!takes(glob, path), "{glob} does not take {path}");
    }
}

/// E4: registering an invalid matcher fails. The error quotes the matcher, unless the matcher is empty.
#[test]
fn an_invalid_matcher_is_an_error_that_quotes_it() {
    let emitter = Emitter::new();
    for bad in [
        "a b",
        "new token",
        "größe",
        "a..b",
        ".a",
        "a.",
        "a-b.c",
        "!start",
        "a!",
        "[a",
        "[]",
        "{a",
        "{a,b.c",
        "a}",
        "a\\",
        "[z-a].x",
        "a/*",
        "a.[",
        "[!",
        "{",
    ] {
        let errors = [
            emitter.on(bad, |_: &mut dyn AnyEvent, _| ()).expect_err(bad).to_string(),
            emitter.off_matching(bad).expect_err(bad).to_string(),
            emitter.register(Options::new().observe(bad, |_: &dyn AnyEvent, _| ())).expect_err(bad).to_string(),
        ];
        for error in errors {
            assert!(error.contains(&format!("`{bad}`")), "{bad}: {error}");
        }
    }
    let error = Matcher::regex("a(b").expect_err("unclosed");
    assert!(error.to_string().contains("`a(b`"), "{error}");
    assert!(matches!(Matcher::regex(""), Err(MatcherError::Empty)));
    assert!(matches!(emitter.on("", |_: &mut (), _| ()), Err(ListenError::Matcher(MatcherError::Empty))));
    assert!(matches!(emitter.off_matching(Regex::new("").expect("it compiles")), Err(MatcherError::Empty)));
    assert_eq!(emitter.listener_count(), 0, "nothing was registered");
}

/// Emits an event with this path. Returns `true` if a listener on the same emitter receives the event.
fn takes(matcher: impl IntoMatcher, path: &str) -> bool {
    let (namespace, name) = path.rsplit_once('.').unwrap_or(("", path));
    let recorder = Recorder::new();
    let emitter = at(&Emitter::new(), namespace);
    emitter.on(matcher, recorder.hears("it")).expect("a matcher");
    emit(&emitter, name);
    !recorder.take().is_empty()
}

fn at(root: &Emitter, namespace: &str) -> Emitter {
    if namespace.is_empty() { root.clone() } else { root.child(namespace).expect("a name") }
}

/// Registers the patterns on one emitter. Returns, for each path, the numbers of the patterns that match it.
fn taken_by(patterns: &[Matcher], paths: &[String]) -> Vec<BTreeSet<usize>> {
    let (root, heard) = (Emitter::new(), Arc::new(Mutex::new(BTreeSet::new())));
    for (i, pattern) in patterns.iter().enumerate() {
        let heard = Arc::clone(&heard);
        root.on(pattern, move |_: &mut dyn AnyEvent, _| {
            heard.lock().expect("calm").insert(i);
        })
        .expect("a matcher");
    }
    let emit_on = |path: &String| {
        let (namespace, name) = path.rsplit_once('.').unwrap_or(("", path));
        emit(&at(&root, namespace), name);
        std::mem::take(&mut *heard.lock().expect("calm"))
    };
    paths.iter().map(emit_on).collect()
}

#[track_caller]
fn as_sets_and_alone(patterns: &[Matcher], paths: &[String]) {
    let together = taken_by(patterns, paths);
    let mut alone = vec![BTreeSet::new(); paths.len()];
    for (i, pattern) in patterns.iter().enumerate() {
        for (all, one) in alone.iter_mut().zip(taken_by(std::slice::from_ref(pattern), paths)) {
            all.extend(one.into_iter().map(|_| i));
        }
    }
    for ((path, together), alone) in paths.iter().zip(together).zip(alone) {
        let list = |set: &BTreeSet<usize>| set.iter().map(|&i| format!("{:?}", patterns[i])).collect::<Vec<_>>();
        assert_eq!(list(&together), list(&alone), "{path}");
    }
}

/// E4: among any number of patterns, each pattern matches the same paths as it does alone.
#[test]
fn each_of_a_thousand_patterns_matches_the_same_paths_as_alone() -> TestResult {
    let patterns: Result<Vec<Matcher>, MatcherError> = (0..1000)
        .map(|i| match i % 5 {
            0 => format!("a{}.*.c{}", i % 7, i % 3).into_matcher(),
            1 => format!("**.c{}", i % 11).into_matcher(),
            2 => Matcher::regex(&format!("{}.*{}$", i % 7, i % 10)),
            3 => format!("c[{}-9]", i % 10).into_matcher(),
            _ => format!("a{}.{{b{},x}}.?{}", i % 7, i % 3, i % 10).into_matcher(),
        })
        .collect();
    let paths: Vec<_> = (0..40).map(|i| format!("a{}.b{}.c{}", i % 7, i % 3, i % 10)).chain(["c5".into()]).collect();
    as_sets_and_alone(&patterns?, &paths);
    Ok(())
}

fn pattern() -> impl Strategy<Value = Matcher> {
    let atom = prop_oneof![
        Just("a"),
        Just("b"),
        Just("ab"),
        Just("*"),
        Just("?"),
        Just("[ab]"),
        Just("[!a]"),
        Just("{a,b}"),
        Just("{a.b,a}"),
        Just("**")
    ];
    let glob = prop::collection::vec(prop::collection::vec(atom, 1..3).prop_map(|atoms| atoms.concat()), 1..4);
    let regex = "[ab.]{1,2}([.]|[.]?b|a+)\\$?";
    prop_oneof![
        3 => glob.prop_filter_map("globset refuses it", |segments| segments.join(".").into_matcher().ok()),
        1 => regex.prop_filter_map("regex refuses it", |pattern| Matcher::regex(&pattern).ok()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// E4: random patterns in sets match the same paths as each pattern does alone.
    #[test]
    fn patterns_in_sets_match_the_same_paths_as_alone(
        patterns in prop::collection::vec(pattern(), 1..60),
        paths in prop::collection::vec("[ab]{1,2}(\\.[ab]{1,2}){0,3}", 20),
    ) {
        as_sets_and_alone(&patterns, &paths);
    }

    /// E2, E4: no text causes a panic when it is used as a matcher or a name. If the text is invalid, the error quotes
    /// it.
    #[test]
    fn any_text_is_a_matcher_or_an_error_that_quotes_it(text in prop_oneof!["\\PC*", r"[a-c.*?!^\[\]{},\\/-]{0,12}"]) {
        let emitter = Emitter::new().child("a.b").expect("a name");
        if let Err(error) = emitter.on(text.as_str(), |_: &mut dyn AnyEvent, _| ()) {
            prop_assert!(text.is_empty() || error.to_string().contains(&text), "{}", error);
        }
        if let Err(error) = Matcher::regex(&text) {
            prop_assert!(text.is_empty() || error.to_string().contains(&text), "{}", error);
        }
        if let Err(error) = emitter.emit_now(text.as_str(), &mut ()) {
            prop_assert!(error.to_string().contains(&text), "{}", error);
        }
        let _ = emitter.child(text.as_str()).map_err(|error| assert_eq!(error.name(), text));
    }
}

/// E4: events of an instance's own run are not nested for the instance, even if the instance is below another run.
#[test]
fn an_instance_that_is_made_in_a_run_receives_events_of_its_own_runs() -> TestResult {
    let outer = run_of(&Emitter::new());
    let instance = outer.child("instance")?;
    let recorder = Recorder::new();
    instance.observe("note", recorder.sees("instance"))?;
    run_of(&instance).emit_now("note", &mut ())?;
    recorder.expect(["instance instance.note"]);
    Ok(())
}

type Register = fn(&Emitter, Arc<AtomicUsize>) -> Result<Subscription, ListenError>;

/// Registers a listener of any type that counts its calls.
fn count_any(
    emitter: &Emitter,
    matcher: impl IntoMatcher,
    calls: Arc<AtomicUsize>,
) -> Result<Subscription, ListenError> {
    emitter.on(matcher, move |_: &mut dyn AnyEvent, _| {
        calls.fetch_add(1, Ordering::Relaxed);
    })
}

/// Registers an observer of one type that counts its calls.
fn count_u32(
    emitter: &Emitter,
    matcher: impl IntoMatcher,
    calls: Arc<AtomicUsize>,
) -> Result<Subscription, ListenError> {
    emitter.observe(matcher, move |_: &u32, _| {
        calls.fetch_add(1, Ordering::Relaxed);
    })
}

/// E4, E7: each kind of matcher, for any type and for one type, on an emitter with few and with many other listeners.
#[test]
fn a_listener_receives_the_same_events_however_many_others_there_are() -> TestResult {
    const X: EventName = EventName::new("x");
    const KINDS: [(&str, Register); 14] = [
        ("name", |emitter, calls| count_any(emitter, "x", calls)),
        ("name, of a type", |emitter, calls| count_u32(emitter, "x", calls)),
        ("path", |emitter, calls| count_any(emitter, "a.x", calls)),
        ("path of a child", |emitter, calls| count_u32(emitter, "a.b.x", calls)),
        ("own", |emitter, calls| count_any(emitter, "*", calls)),
        ("own, of a type", |emitter, calls| count_u32(emitter, "*", calls)),
        ("every", |emitter, calls| count_any(emitter, "*.*", calls)),
        ("every, of a type", |emitter, calls| count_u32(emitter, "*.*", calls)),
        ("glob of names", |emitter, calls| count_any(emitter, "[x]", calls)),
        ("glob of paths, of a type", |emitter, calls| count_u32(emitter, "**.x", calls)),
        ("regex", |emitter, calls| count_any(emitter, Matcher::regex("b.x$")?, calls)),
        ("ready-made regex", |emitter, calls| count_u32(emitter, Regex::new("x$").expect("a regex"), calls)),
        ("function", |emitter, calls| count_any(emitter, matcher_fn(|meta| meta.name() == "x"), calls)),
        ("named function, of a type", |emitter, calls| count_u32(emitter, matcher_fn(|_| true).named([X]), calls)),
    ];
    for (what, register) in KINDS {
        let calls_beside = |others: usize| -> Result<_, BoxError> {
            let emitter = Emitter::new().child("a")?;
            let child = emitter.child("b")?;
            for i in 0..others {
                emitter.observe(format!("other_{i}"), |_: &String, _| ())?;
                emitter.observe(format!("a.other_{i}"), |_: &String, _| ())?;
                emitter.observe(format!("other_{i}_*"), |_: &String, _| ())?;
            }
            let calls = Arc::new(AtomicUsize::new(0));
            let subscription = register(&emitter, Arc::clone(&calls))?;
            let mut seen = Vec::new();
            for (at, name) in [(&emitter, "x"), (&emitter, "y"), (&emitter, "b.x"), (&child, "x"), (&child, "y")] {
                at.emit_now(name, &mut 1_u32)?;
                at.emit_now(name, &mut "text")?;
                // A mismatch with an exact matcher is counted as a failure.
                seen.push((calls.swap(0, Ordering::Relaxed), emitter.isolated_failures()));
            }
            assert!(subscription.off());
            emitter.emit_now("x", &mut 1_u32)?;
            assert_eq!(calls.load(Ordering::Relaxed), 0, "{what}");
            Ok(seen)
        };
        let seen = calls_beside(0)?;
        assert!(seen.iter().any(|(calls, _)| *calls > 0), "{what}");
        assert_eq!(calls_beside(20)?, seen, "{what}");
    }
    Ok(())
}
