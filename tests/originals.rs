//! `tests/originals.md` has a row for each row of the originals, and the items and tests in its rows exist.
//!
//! The sources are read as text. rustfmt has formatted them: an item begins at the left margin, and its members at four
//! spaces. Each `pub` item can be reached by users, because of the lint `unreachable_pub`; for the crates whose names the
//! facade lists one by one, this test checks the list.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The tables of the page, by the letter of their rows.
const ROWS: [(char, usize); 7] = [('S', 49), ('C', 32), ('K', 27), ('V', 26), ('B', 46), ('G', 28), ('A', 20)];

const CRATES: [&str; 7] = ["emitter", "runtime", "secrets", "middleware-builtin", "sinks", "agent", "agent-kit"];

fn text_of(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).ok()
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files_in(&path) } else { vec![path] }).collect()
}

/// Returns the identifier at the beginning of a text.
fn word(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| &text[..end])
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The public names of the crates.
#[derive(Default)]
struct Api {
    types: BTreeSet<String>,
    functions: BTreeSet<String>,
    /// Methods, constants, variants and public fields.
    members: BTreeMap<String, BTreeSet<String>>,
    /// The public fields of structs.
    fields: BTreeMap<String, BTreeSet<String>>,
    /// The types of events with the names of the events.
    events: BTreeSet<(String, String)>,
}

impl Api {
    fn read() -> Self {
        let mut api = Self::default();
        let facade = text_of("src/lib.rs").expect("the facade");
        let listed: BTreeSet<_> = words(&facade).collect();
        for name in CRATES {
            let listed = matches!(name, "emitter" | "runtime").then_some(&listed);
            for file in files_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join(name).join("src")) {
                api.add(&fs::read_to_string(file).expect("a source file"), listed);
            }
        }
        api
    }

    /// Adds the items of a source file, or only the `listed` ones.
    fn add(&mut self, source: &str, listed: Option<&BTreeSet<&str>>) {
        for line in source.lines() {
            let is_public = |name: &str| listed.is_none_or(|names| names.contains(name));
            if let Some((kind, name)) = declared(line).filter(|(_, name)| is_public(name)) {
                let names = if kind == "fn" { &mut self.functions } else { &mut self.types };
                names.insert(name.to_owned());
            }
        }
        self.events.extend(named(source).map(|(owner, name)| (owner.to_owned(), name.to_owned())));
        for item in source.split("\n}").filter_map(Item::of) {
            if let Some((_, rest)) = item.body.split_once("const NAME: EventName = EventName::new(\"") {
                self.events.extend(word(rest).map(|name| (item.owner.clone(), name.to_owned())));
            }
            let members = item.members(source);
            if item.header.starts_with("pub struct ") {
                self.fields.entry(item.owner.clone()).or_default().extend(members.iter().cloned());
            }
            self.members.entry(item.owner).or_default().extend(members);
        }
    }

    /// Returns whether `Type`, `function`, `Type::member`, `Type {all, its, fields}` or `event: Type {…}` exists.
    fn has(&self, name: &str) -> bool {
        if let Some((event, payload)) = name.split_once(": ") {
            let owner = word(payload).unwrap_or_default().to_owned();
            return self.events.contains(&(owner, event.to_owned())) && self.has(payload);
        }
        if let Some((owner, fields)) = name.split_once(" {") {
            let fields = words(fields).map(str::to_owned).collect();
            return self.types.contains(owner) && *self.fields.get(owner).unwrap_or(&BTreeSet::new()) == fields;
        }
        match name.split_once("::") {
            Some((owner, member)) => {
                self.types.contains(owner) && self.members.get(owner).is_some_and(|members| members.contains(member))
            }
            None => self.types.contains(name) || self.functions.contains(name),
        }
    }
}

/// Returns the kind and the name of a public item that begins with this line.
fn declared(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("pub ")?.trim_start_matches("const ").trim_start_matches("async ");
    let (kind, name) = rest.split_once(' ')?;
    let is_item = matches!(kind, "struct" | "enum" | "trait" | "type" | "fn");
    Some((kind, word(name)?)).filter(|_| is_item)
}

/// A type, a trait or an implementation, with its members.
struct Item<'s> {
    header: &'s str,
    body: &'s str,
    owner: String,
}

impl<'s> Item<'s> {
    /// Finds the item at the end of a piece of source.
    fn of(piece: &'s str) -> Option<Self> {
        let begins = |at: &usize| {
            let rest = &piece[*at..];
            rest.starts_with("impl") || declared(rest).is_some_and(|(kind, _)| kind != "fn")
        };
        let lines = piece.match_indices('\n').map(|(at, _)| at + 1).chain([0]);
        let (header, body) = piece[lines.filter(begins).max()?..].split_once('{')?;
        let owner = declared(header).map_or_else(|| implementing(header), |(_, name)| name.to_owned());
        (!header.contains(';')).then_some(Self { header, body, owner })
    }

    fn members(&self, source: &str) -> BTreeSet<String> {
        let is_open = self.header.starts_with("pub enum ")
            || self.header.starts_with("pub trait ")
            || self.header.contains(" for ");
        let lines = || self.body.lines();
        let own = lines().filter_map(|line| member(line, is_open));
        let of_macros = lines().filter_map(|line| word(line.strip_prefix("    ")?).filter(|_| line.contains('!')));
        let of_macros = of_macros.flat_map(|name| defined_by(name, source)).chain(lines().flat_map(passed));
        own.chain(of_macros).map(str::to_owned).collect()
    }
}

/// Returns the name of the type that has the implementation.
fn implementing(header: &str) -> String {
    let mut depth = 0;
    let mut arrow = false;
    let outside: String = header["impl".len()..]
        .chars()
        .filter(|c| {
            let is_inside = depth > 0 || matches!(c, '<' | '>');
            depth += match c {
                '<' => 1,
                '>' if !arrow => -1,
                _ => 0,
            };
            arrow = *c == '-';
            !is_inside
        })
        .collect();
    let target = outside.split(" where").next().unwrap_or_default();
    let target = target.rsplit(" for ").next().unwrap_or_default();
    words(target).last().unwrap_or_default().to_owned()
}

fn member(line: &str, is_open: bool) -> Option<&str> {
    let rest = line.strip_prefix("    ")?;
    let rest = if is_open { rest } else { rest.strip_prefix("pub ")? };
    word(["const ", "async ", "fn "].iter().fold(rest, |rest, start| rest.strip_prefix(start).unwrap_or(rest)))
}

/// Returns the names of the methods that a macro of the file defines, as `verbs!` does.
fn defined_by<'s>(name: &str, source: &'s str) -> Vec<&'s str> {
    let body = source.split_once(&format!("macro_rules! {name} ")).map_or("", |(_, rest)| rest);
    let body = body.split("\n}").next().unwrap_or_default();
    body.lines().filter_map(|line| word(line.trim_start().strip_prefix("pub fn ")?)).collect()
}

/// Returns the events that a macro of the file names, as in `named! { NewToken = "new_token"; }`.
fn named(source: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = source.match_indices(" = \"").map(|(at, sign)| (&source[..at], &source[at + sign.len()..]));
    pairs.filter_map(|(before, after)| Some((words(before.lines().last()?).last()?, word(after)?)))
}

/// Returns the names that a line passes to a macro inside an implementation, as in `chain! { on_state, on_state_async, … }`.
fn passed(line: &str) -> Vec<&str> {
    let Some(rest) = line.strip_prefix("        ").filter(|rest| !rest.starts_with(' ')) else { return Vec::new() };
    rest.split(", ").take_while(|piece| word(piece) == Some(piece)).collect()
}

/// A row: its number, its items here, and the tests.
struct Row<'p> {
    number: &'p str,
    here: &'p str,
    tests: &'p str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Built,
    Partly,
    NotBuilt,
    Otherwise,
}

impl<'p> Row<'p> {
    fn of(line: &'p str) -> Option<Self> {
        let cells: Vec<_> = line.strip_prefix("| ")?.strip_suffix('|')?.split(" | ").map(str::trim).collect();
        let [number, _, here, tests] = cells[..] else { return None };
        number.ends_with(|c: char| c.is_ascii_digit()).then_some(Self { number, here, tests })
    }

    fn state(&self) -> State {
        match self.here {
            here if here.starts_with("not built") => State::NotBuilt,
            here if here.starts_with("otherwise: ") => State::Otherwise,
            here if here.contains("not built") => State::Partly,
            _ => State::Built,
        }
    }

    /// Returns what is wrong with the row.
    fn faults(&self, api: &Api) -> Vec<String> {
        let (items, tests) = (code(self.here), code(self.tests));
        let is_proved = !items.is_empty() && !tests.is_empty();
        let fits = match self.state() {
            State::Built | State::Partly => is_proved,
            State::NotBuilt => items.is_empty() && tests.is_empty(),
            State::Otherwise => true,
        };
        let items = items.iter().filter(|name| !api.has(name)).map(|name| format!("there is no item `{name}`"));
        let tests = tests.iter().filter(|name| !is_test(name)).map(|name| format!("there is no test `{name}`"));
        let unfit = (!fits).then(|| "a row has items and a test, or neither and the words `not built`".to_owned());
        items.chain(tests).chain(unfit).map(|fault| format!("{}: {fault}", self.number)).collect()
    }
}

/// Returns the pieces of code in a cell.
fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Returns whether there is a test `crate/file::name`.
fn is_test(path: &str) -> bool {
    let Some((file, name)) = path.split_once("::") else { return false };
    let Some((folder, file)) = file.split_once('/') else { return false };
    let places = match folder {
        "tests" => vec![format!("tests/{file}.rs")],
        _ if file.starts_with("src/") => vec![format!("{folder}/{file}.rs")],
        _ => vec![format!("{folder}/tests/it/{file}.rs"), format!("{folder}/tests/{file}.rs")],
    };
    places.iter().filter_map(text_of).any(|text| {
        let before = text.split_once(&format!("fn {name}(")).map(|(before, _)| before);
        let attributes = before.and_then(|before| before.rsplit("\n\n").next()).unwrap_or_default();
        attributes.contains("#[test]") || attributes.contains("#[tokio::test")
    })
}

fn rows(page: &str) -> Vec<Row<'_>> {
    page.lines().filter_map(Row::of).collect()
}

#[test]
fn every_item_and_every_test_in_a_row_exists() {
    let api = Api::read();
    let page = text_of("tests/originals.md").expect("the page");
    let faults: Vec<_> = rows(&page).iter().flat_map(|row| row.faults(&api)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_row_is_missing_and_the_page_counts_its_rows() {
    let page = text_of("tests/originals.md").expect("the page");
    let expected = ROWS.iter().flat_map(|(letter, count)| (1..=*count).map(move |number| format!("{letter}{number}")));
    let rows = rows(&page);
    assert_eq!(rows.iter().map(|row| row.number.to_owned()).collect::<Vec<_>>(), expected.collect::<Vec<_>>());

    let count = |state| rows.iter().filter(|row| row.state() == state).count();
    let [built, partly] = [State::Built, State::Partly].map(count);
    let [not_built, otherwise] = [State::NotBuilt, State::Otherwise].map(count);
    let total = rows.len();
    let counts = format!(
        "The page has {total} rows: {built} are built, {partly} are built in part, {not_built} are not built, and \
         {otherwise} differ on purpose."
    );
    assert!(page.contains(&counts), "the page has no sentence: {counts}");
}

#[test]
fn each_kind_of_wrong_row_is_found() {
    let api = Api::read();
    let test = "`agent/places/places::a_gate_can_answer_skip_deny_and_edit_calls`";
    let table = [
        ("`Hooks::on_state`, `Emitter::on`, `for_tree`", test, ""),
        ("`retry: ToolRetry {retry, error}`, `new_token: NewToken {text, is_reasoning}`", test, ""),
        ("not built yet", "", ""),
        ("`Hooks::on_weekday`", test, "there is no item `Hooks::on_weekday`"),
        ("`Hooks::failure`", test, "there is no item `Hooks::failure`"),
        ("`OwnHooks`", test, "there is no item `OwnHooks`"),
        ("`Facet`", test, "there is no item `Facet`"),
        ("`ToolRetry {retry}`", test, "there is no item `ToolRetry {retry}`"),
        ("`ToolRetry {retry, error, delay}`", test, "there is no item `ToolRetry {retry, error, delay}`"),
        ("`again: ToolRetry {retry, error}`", test, "there is no item `again: ToolRetry {retry, error}`"),
        ("`Agent`", "`agent/places/places::mark_at`", "there is no test `agent/places/places::mark_at`"),
        ("`Agent`", "`agent/nowhere::a_test`", "there is no test `agent/nowhere::a_test`"),
        ("`Agent`", "", "a row has items and a test"),
        ("an agent", test, "a row has items and a test"),
        ("not built yet", test, "a row has items and a test"),
    ];
    for (here, tests, expected) in table {
        let faults = Row { number: "X1", here, tests }.faults(&api).join("\n");
        let is_found = if expected.is_empty() { faults.is_empty() } else { faults.contains(expected) };
        assert!(is_found, "{here} | {tests}: {faults}");
    }
}
