//! A corpus of planted secrets and of look-alikes. Its README describes the corpus and contains the measured figures.
#![allow(dead_code, reason = "each test file uses its own part of this")]

mod documented;
pub(crate) mod figures;
mod formats;
mod fourth;
mod held_out;
mod named;
mod shapes;
mod third;
mod tuned;

use emitree_secrets::{Rule, Scanner};
use fastrand::Rng;

/// A text with one secret.
#[derive(Clone, Debug)]
pub(crate) struct Planted {
    pub(crate) kind: &'static str,
    pub(crate) text: String,
    pub(crate) secret: String,
}

/// Returns the secret in an example; after a keyword or a name, the secret is the last word.
fn secret_of<'e>(rule: &Rule, example: &'e str) -> &'e str {
    match rule.name {
        "azure_key" if rule.near.is_empty() => example.trim_start_matches("AccountKey="),
        "url_password" => example.trim_start_matches("ftp://ana:").trim_end_matches("@host"),
        "assigned" if example.contains('@') => example.trim_start_matches("curl -u "),
        "assigned" if example.starts_with("auth") => example.trim_start_matches("auth=('").trim_end_matches("')"),
        "assigned" => last_word(example),
        _ if example.ends_with('"') => last_word(example),
        "ssn" => example.trim_start_matches("SSN "),
        "cookie" if example.starts_with("Cookie: ") => example.trim_start_matches("Cookie: "),
        "cookie" | "docker_auth" => last_word(example),
        _ if rule.near.is_empty() => example,
        _ => example.rsplit(' ').next().unwrap_or(example),
    }
}

/// Returns the last word, without the punctuation around it.
fn last_word(example: &str) -> &str {
    let mut words = example.trim_end_matches(['\'', '"', ')', ':', '<', '/']).rsplit([' ', '=', ':', '\'', '"', '>']);
    words.next().unwrap_or(example)
}

/// One part of the corpus.
pub(crate) struct Half {
    pub(crate) planted: Vec<Planted>,
    pub(crate) look_alikes: Vec<String>,
}

impl Half {
    pub(crate) fn tuned() -> Self {
        Self::of(tuned::PLANTED, tuned::LOOK_ALIKES, 1)
    }

    pub(crate) fn held_out() -> Self {
        Self::of(held_out::PLANTED, held_out::LOOK_ALIKES, 2)
    }

    /// Returns the part that is made from the examples in the table of rules.
    pub(crate) fn tabled() -> Self {
        const TEXTS: [&str; 4] = ["§", "it is § indeed.\n", "{\"a\":\"§\"}", "a=1;\n§\n"];
        let rules =
            Scanner::table().iter().enumerate().flat_map(|(nth, rule)| (0..8).map(move |seed| (nth, rule, seed)));
        let planted = rules.map(|(nth, rule, seed)| {
            let example = rule.drawn(100 * nth as u64 + seed as u64);
            let secret = secret_of(rule, &example).to_owned();
            let text = if rule.example.contains("DB_") { "§\n" } else { TEXTS[seed % TEXTS.len()] };
            Planted { kind: rule.name, text: text.replace('§', &example), secret }
        });
        Self { planted: planted.collect(), look_alikes: Vec::new() }
    }

    fn of(planted: &[(&'static str, &[&str])], look_alikes: &[&str], seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let each =
            planted.iter().flat_map(|(kind, templates)| templates.iter().map(move |template| (*kind, *template)));
        let planted = each.map(|(kind, template)| Planted::new(kind, template, &mut rng)).collect();
        Self { planted, look_alikes: look_alikes.iter().map(|template| filled(template, &mut rng)).collect() }
    }
}

impl Planted {
    fn new(kind: &'static str, template: &str, rng: &mut Rng) -> Self {
        let secret = shapes::secret(kind, rng);
        Self { kind, text: template.replace("{}", &secret), secret }
    }
}

/// Returns the names and contents of `OpenAPI` and compose files that contain no secret.
pub(crate) fn clean_files() -> Vec<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../secrets/tests/corpus/clean");
    let files = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path());
    let read = |path: &std::path::PathBuf| std::fs::read_to_string(path).expect("a text");
    files.map(|path| (path.display().to_string(), read(&path))).collect()
}

type Make = fn(&mut Rng) -> String;

/// Replaces the placeholders of a template with made-up values.
fn filled(template: &str, rng: &mut Rng) -> String {
    let mut text = template.to_owned();
    let made: [(&str, Make); 6] = [
        ("{sha1}", |rng| shapes::hex(rng, 40)),
        ("{sha256}", |rng| shapes::hex(rng, 64)),
        ("{uuid}", uuid),
        ("{base64}", |rng| shapes::base64(rng, 400)),
        ("{order}", order),
        ("{digits}", |rng| shapes::digits(rng, 9)),
    ];
    for (name, make) in made {
        while text.contains(name) {
            text = text.replacen(name, &make(rng), 1);
        }
    }
    text
}

fn uuid(rng: &mut Rng) -> String {
    [8, 4, 4, 4, 12].map(|len| shapes::hex(rng, len)).join("-")
}

/// Returns a number that is as long as a card number, but does not pass Luhn's check.
fn order(rng: &mut Rng) -> String {
    let mut number = format!("4{}", shapes::digits(rng, 15));
    while shapes::luhn(&number) {
        number = format!("4{}", shapes::digits(rng, 15));
    }
    number
}
