//! Measures which secrets in a corpus are found and which other texts are taken for secrets. Also checks that text in
//! chunks gives the same results.

mod corpus;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use corpus::figures::{Figures, expect_documented};
use corpus::{Half, Planted};
use emitree_secrets::{Check, Kind, PatternError, Piece, Rule, Scanner};
use fastrand::Rng;
use proptest::prelude::*;

/// Returns the text with each secret replaced by the name of its kind.
fn redacted(text: &str) -> String {
    Scanner::new().replace(text, |kind, _| format!("[{kind}]")).into_owned()
}

fn chunked(text: &str, sizes: impl IntoIterator<Item = usize>) -> String {
    chunked_by(&Scanner::new(), text, sizes, |kind, _| format!("[{kind}]"))
}

/// Patterns with assertions about the surrounding text.
const LOOK_AROUND: [&str; 16] = [
    r"^ab",
    r"a\Bb",
    r"(?m)a$\nb",
    r"ab$",
    r"\Aa[bé]",
    r"[ab]{1,9}b\z",
    r"\bab\b",
    r"\bé{1,5}\b",
    r"a\b.",
    r"\Bb\B",
    r"(?m)^a{1,3}",
    r"(?m)1{1,4}$",
    r"(?mR)b$",
    r"(?:^|\s)(ab?)(?:\s|$)",
    r"\b{start}1{2,3}\b{end}",
    r"z{1,40}(?:\z|\b{end-half})",
];

/// Returns a scanner for each pattern of `LOOK_AROUND`, and one scanner for all of these patterns.
fn looking_around() -> Vec<Scanner> {
    let add = |scanner: Scanner, regex: &&str| scanner.pattern(regex, regex).expect("it is taken");
    let each = LOOK_AROUND.iter().map(|regex| add(Scanner::only([]), regex));
    each.chain([LOOK_AROUND.iter().fold(Scanner::only([]), add)]).collect()
}

fn chunked_by(
    scanner: &Scanner,
    text: &str,
    sizes: impl IntoIterator<Item = usize>,
    by: impl Fn(&Kind, &str) -> String,
) -> String {
    let (mut out, mut rest) = (String::new(), text);
    let mut chunks = scanner.chunks();
    let mut give = |piece: Piece<'_>| match piece {
        Piece::Clean(clean) => out += clean,
        Piece::Secret(kind, secret) => out += &by(kind, secret),
    };
    for size in sizes {
        let (chunk, after) = rest.split_at(rest.ceil_char_boundary(size.min(rest.len())));
        chunks.push(chunk, &mut give);
        rest = after;
    }
    chunks.push(rest, &mut give);
    chunks.finish(&mut give);
    out
}

/// The maximum length of a piece of a secret that may remain.
const SHORT: usize = 3;

/// Returns `true` if at most [`SHORT`] consecutive characters of a secret remain. Pieces that also occur in the
/// surrounding text are ignored.
fn is_hidden(planted: &Planted, out: &str) -> bool {
    let around = planted.text.replace(&planted.secret, "\0");
    let secret: Vec<char> = planted.secret.chars().collect();
    let pieces = secret.windows(SHORT + 1).map(|piece| piece.iter().collect::<String>());
    pieces.filter(|piece| !around.contains(piece)).all(|piece| !out.contains(&piece))
}

/// Replaces secrets with a character that no secret contains.
fn hidden(text: &str) -> String {
    Scanner::new().replace(text, |_, _| "\u{2588}".to_owned()).into_owned()
}

fn measured(half: &Half) -> Figures {
    Figures::of(half, |planted| Some(is_hidden(planted, &hidden(&planted.text))), |text| redacted(text) != text)
}

/// Prints the misses and false alarms of a part. It is called only for parts that patterns may be tuned on.
fn print_misses(half: &Half) {
    for planted in half.planted.iter().filter(|planted| !is_hidden(planted, &hidden(&planted.text))) {
        println!("  {}: {:?}\n    -> {:?}", planted.kind, planted.text, redacted(&planted.text));
    }
    let alarms = half.look_alikes.iter().filter(|text| redacted(text) != **text);
    alarms.for_each(|text| println!("  alarm: {text:?}\n    -> {:?}", redacted(text)));
}

/// The parts of the corpus, made once.
static PARTS: LazyLock<[(&str, Half); 8]> = LazyLock::new(|| {
    [
        ("table", Half::tabled()),
        ("formats", Half::formats()),
        ("documented", Half::documented()),
        ("tuned", Half::tuned()),
        ("held out", Half::held_out()),
        ("third", Half::third()),
        ("named", Half::named()),
        ("named, held out", Half::named_held_out()),
    ]
});

#[test]
fn the_scanner_hides_99_percent_of_secrets_and_at_most_2_percent_of_look_alikes_as_documented() {
    print_misses(&PARTS[0].1);
    print_misses(&PARTS[3].1);
    print_misses(&PARTS[6].1);
    for ((_, half), (planted, look_alikes)) in
        PARTS.iter().zip([(600, 0), (900, 0), (2_700, 0), (100, 100), (100, 100), (60, 80), (500, 0), (500, 0)])
    {
        assert!(half.planted.len() >= planted && half.look_alikes.len() >= look_alikes);
    }
    let columns = PARTS.each_ref().map(|(name, half)| (*name, measured(half)));
    columns.iter().for_each(|(name, figures)| figures.expect_good(name));
    let by_kind = columns[..3].iter().chain(&columns[6..]);
    by_kind.for_each(|(name, figures)| figures.expect_good_by_kind(name));
    expect_documented(&columns);
}

/// The scanner has the options that `ExfilGuard` uses.
#[test]
fn in_the_lines_that_were_committed_before_they_were_measured_99_percent_of_each_kind_are_found_now() {
    let found = |planted: &Planted| {
        Some(is_hidden(planted, &Scanner::keys().replace(&planted.text, |_, _| "\u{2588}".to_owned())))
    };
    let measured = |half: Half| Figures::of(&half, found, |_| false);
    let [fourth, second, third] =
        [Half::fourth(), Half::fourth_after_changes(), Half::fourth_after_more_changes()].map(measured);
    fourth.expect_good_by_kind("fourth");
    second.expect_good_by_kind("fourth, 25 more");
    // No rule was changed after these lines were measured.
    third.expect_by_kind("fourth, last 25", 0.96);
    expect_documented(&[("fourth", fourth), ("25 more", second), ("last 25", third)]);
}

/// Each row of the table names a page that documents the format. The example in the row is found, with the kind of the
/// row.
#[test]
fn each_rule_of_the_table_names_its_source_and_its_example_is_found_as_its_kind() {
    let scanner = Scanner::new();
    for (nth, rule) in Scanner::table().iter().enumerate() {
        assert!(rule.source.starts_with("https://") && !rule.example.is_empty(), "{}", rule.name);
        let kind = Kind::named(rule.name).expect("a kind of the table");
        for seed in 0..4 {
            let example = rule.drawn(1_000 * nth as u64 + seed);
            let found = scanner.find(&example);
            assert_eq!(found.iter().map(|finding| &finding.kind).collect::<Vec<_>>(), [&kind], "{example}");
        }
    }
    assert!(Kind::all().len() >= 74, "{} kinds", Kind::all().len());
    assert_eq!(Kind::named("of_nobody"), None);
}

/// A user's rule, in the form of a row of the table.
const OWN: Rule = Rule {
    name: "tide_key",
    pattern: "[a-f0-9]{16}",
    near: &["tide"],
    check: Check::by(|secret| !secret.starts_with('0')),
    source: "https://tide.example/docs",
    example: "tide 1‹x15›",
};

#[test]
fn a_custom_kind_is_added_by_a_rule_like_those_in_the_table() {
    let scanner = Scanner::new().rule(&OWN).expect("it is taken");
    let rows = [
        ("TIDE_KEY=1f2e3d4c5b6a7988", "TIDE_KEY=[tide_key]"),
        ("tide: 0f2e3d4c5b6a7988", "tide: 0f2e3d4c5b6a7988"),
        ("tidy: 1f2e3d4c5b6a7988", "tidy: 1f2e3d4c5b6a7988"),
        ("tide\n1f2e3d4c5b6a7988", "tide\n1f2e3d4c5b6a7988"),
    ];
    for (text, expected) in rows {
        assert_eq!(scanner.replace(text, |kind, _| format!("[{kind}]")), expected);
    }
    let wrong = Rule { example: "tide 0‹x15›", ..OWN };
    assert!(matches!(Scanner::new().rule(&wrong), Err(PatternError::Example { name }) if name == "tide_key"));
}

/// A secret with invisible characters inside is still a secret, because they are easy to remove from a copy.
#[test]
fn a_token_is_found_with_zero_width_characters_and_soft_hyphens_inside() {
    let token = format!("gh{}", "p_aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5");
    for hidden in ["\u{200b}", "\u{ad}", "\u{feff}\u{2060}", "\u{200d}"] {
        let inside: String = token.chars().flat_map(|c| [c.to_string(), hidden.to_owned()]).collect();
        let text = format!("as {hidden}{inside} it, naïve“\u{200b}” is");
        let expected = format!("as {hidden}[github_token]{hidden} it, naïve“\u{200b}” is");
        assert_eq!(redacted(&text), expected);
        for size in [1, 2, 3, 7, 64] {
            assert_eq!(chunked(&text, std::iter::repeat_n(size, text.len())), expected, "in chunks of {size}");
        }
        let found = &Scanner::new().find(&text)[0];
        assert_eq!(&text[found.span.clone()], inside.trim_end_matches(hidden));
    }
    // A sequence of more than 16 invisible characters separates the text around it.
    let apart = token.replace("aB3d", &format!("aB{}3d", "\u{200b}".repeat(17)));
    assert_eq!(redacted(&apart), apart);
    assert_eq!(chunked(&apart, std::iter::repeat_n(5, apart.len())), apart);
}

#[test]
fn assigned_passwords_with_special_characters_or_only_letters_are_found() {
    let rows = [
        ("password = \"Tr0ub$4dor&3x\"", "password = \"[assigned]\""),
        ("PASSWORD=p4$$<w0rd>&q\n", "PASSWORD=[assigned]\n"),
        ("https://a.org/?password=abc12345d&next=1", "https://a.org/?password=[assigned]&next=1"),
        ("<b>password: abc12345d</b>", "<b>password: [assigned]</b>"),
        ("password=abc12345d&&run", "password=[assigned]&&run"),
        ("PASSWORD=$DB_PASSWORD1", "PASSWORD=$DB_PASSWORD1"),
        ("password = \"${DB_PASSWORD1}\"", "password = \"${DB_PASSWORD1}\""),
        ("password: 'correcthorse'", "password: '[assigned]'"),
        ("DB_PASSWORD=correcthorse\n", "DB_PASSWORD=[assigned]\n"),
        ("password: required", "password: required"),
        ("password: correcthorse\n", "password: [assigned]\n"),
        ("  password: swordfish # local", "  password: [assigned] # local"),
        ("APP_SECRET=hunterhunter", "APP_SECRET=[assigned]"),
        ("the password: correcthorse", "the password: correcthorse"),
        ("token: BearerToken\nclient_secret: optional\n", "token: BearerToken\nclient_secret: optional\n"),
        ("password: hunters\n", "password: hunters\n"),
        ("password = 'confirmPassword'", "password = 'confirmPassword'"),
    ];
    for (text, expected) in rows {
        assert_eq!(redacted(text), expected);
    }
    let secret = format!("/{}", "wJ4lrXUtnFEMI+K7MDENG8bPxRfiCYzQp3vB2aE");
    assert_eq!(redacted(&format!("aws_secret_access_key = {secret}")), "aws_secret_access_key = [aws_key]");
}

/// The approximate numbers of bytes after which no more text is read from a package, and from all packages.
const OF_EACH: usize = 48 << 10;
const OF_ALL: usize = 4 << 20;

/// Returns samples of the sources and documents of the packages in cargo's home directory. Packages of this workspace are
/// there after a trial of publishing them, and the tests of this crate are full of secrets.
fn ordinary_texts() -> Vec<(PathBuf, String)> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let registries = home.into_iter().flat_map(|home| listed(&home.join("registry/src")));
    let (mut texts, mut total) = (Vec::new(), 0);
    for package in registries.flat_map(|registry| listed(&registry)) {
        if package.file_name().is_some_and(|name| name.to_string_lossy().starts_with("emitree")) {
            continue;
        }
        let (mut folders, mut len) = (vec![package], 0);
        while let Some(path) = folders.pop() {
            folders.extend(listed(&path));
            let is_text = path.extension().is_some_and(|of| ["rs", "md", "toml"].iter().any(|text| of == *text));
            if is_text
                && len < OF_EACH
                && let Ok(text) = std::fs::read_to_string(&path)
            {
                let text = text[..text.floor_char_boundary(OF_EACH.min(text.len()))].to_owned();
                len += text.len();
                texts.push((path, text));
            }
        }
        total += len;
        if total > OF_ALL {
            break;
        }
    }
    texts
}

/// Returns the entries of a folder in order, or no entries if the path is not a folder.
fn listed(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort_unstable();
    paths
}

#[test]
fn openapi_and_compose_files_without_secrets_have_no_finding() {
    let files = corpus::clean_files();
    assert!(files.len() >= 50, "{} files", files.len());
    let scanner = Scanner::keys();
    let found =
        files.iter().flat_map(|(path, text)| scanner.find(text).into_iter().map(move |at| (path, &text[at.span])));
    assert_eq!(found.collect::<Vec<_>>(), []);
}

/// This test also passes if cargo's home directory contains no packages.
#[test]
fn ordinary_text_has_at_most_one_false_alarm_per_500_kb() {
    expect_clean(&ordinary_texts());
}

#[test]
fn the_sources_and_documents_of_this_workspace_have_at_most_one_false_alarm_per_500_kb() {
    let texts = texts_of_the_workspace();
    let total: usize = texts.iter().map(|(_, text)| text.len()).sum();
    assert!(total > 1_000_000, "{total} bytes");
    expect_clean(&texts);
}

/// Returns the sources, documents and lock files of the workspace, without tests and without this crate.
fn texts_of_the_workspace() -> Vec<(PathBuf, String)> {
    let (mut folders, mut texts) = (vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..")], Vec::new());
    while let Some(folder) = folders.pop() {
        for path in listed(&folder) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_left_out = name.starts_with('.') || ["target", "tests", "secrets"].iter().any(|out| name == *out);
            let is_text =
                ["rs", "md", "toml", "lock"].iter().any(|text| path.extension().is_some_and(|of| of == *text));
            match std::fs::read_to_string(&path) {
                Ok(text) if is_text && !is_left_out => texts.push((path, text)),
                Err(_) if path.is_dir() && !is_left_out => folders.push(path),
                _ => {}
            }
        }
    }
    texts
}

/// Asserts that the texts have at most one finding per 500 KB.
#[track_caller]
fn expect_clean(texts: &[(PathBuf, String)]) {
    let total: usize = texts.iter().map(|(_, text)| text.len()).sum();
    let scanner = Scanner::keys();
    let mut alarms = 0;
    for (path, text) in texts {
        for finding in scanner.find(text) {
            let line = text[..finding.span.start].lines().count();
            println!("{}:{line}: {}: {}", path.display(), finding.kind, &text[finding.span]);
            alarms += 1;
        }
    }
    assert!(alarms <= total / 500_000, "{alarms} false alarms in {total} bytes");
}

/// A secret counts as missed if more than 3 consecutive characters of it remain.
#[test]
fn the_measure_counts_a_secret_as_hidden_if_no_piece_longer_than_3_characters_remains() {
    let planted = Planted { kind: "assigned", text: "key: Zq7-Zq7-99 abcd".into(), secret: "Zq7-Zq7-99 abcd".into() };
    for (out, expected) in
        [("key: \u{2588}", true), ("key: \u{2588}bcd", true), ("key: \u{2588}abcd", false), ("Zq7-", false)]
    {
        assert_eq!(is_hidden(&planted, out), expected, "{out}");
    }
}

#[test]
fn a_routable_gitlab_token_is_found_with_its_checksum_and_without_text_after_a_full_stop() {
    let token = format!("gl{}", "pat-aB3dE5fG7hJ9kL1mN3pQ5rS7tU9");
    let rows =
        [("", ""), (".0w1a2b3c4", ""), (".01.0w1a2b3c4", ""), (".", "."), (". Then", ". Then"), (".git", ".git")];
    for (after, left) in rows {
        assert_eq!(redacted(&format!("{token}{after}")), format!("[gitlab_token]{left}"));
    }
}

/// Common test card numbers have only two different digits.
#[test]
fn a_card_number_with_two_different_digits_is_found_with_and_without_separators() {
    for number in
        ["4111111111111111", "4111 1111 1111 1111", "4242424242424242", "4242-4242-4242-4242", "5555555555554444"]
    {
        assert_eq!(redacted(&format!("Visa {number}, please")), "Visa [card], please");
    }
    assert_eq!(redacted("0000000000000000"), "0000000000000000");
}

/// RFC 5322 allows apostrophes in addresses; apostrophes that quote an address are not part of it.
#[test]
fn an_apostrophe_belongs_to_an_email_address_only_within_the_address() {
    let rows = [
        ("From: j.o'neill+billing@harbour.ie", "From: [email]"),
        ("to='maria@mailbox.org'", "to='[email]'"),
        ("['a1@mailbox.org','b2@mailbox.org']", "['[email]','[email]']"),
        ("\'\'\'o'brien@mailbox.org\'\'\'", "\'\'\'[email]\'\'\'"),
    ];
    for (text, expected) in rows {
        assert_eq!(redacted(text), expected);
        assert_eq!(chunked(text, std::iter::repeat_n(1, text.len())), expected, "{text} in chunks");
    }
}

/// If the format of a token allows more characters, text that directly follows the token is matched too.
#[test]
fn a_placeholder_word_after_a_token_does_not_hide_it_and_inside_marks_it_as_no_secret() {
    let token = format!("{}_aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5", "ghp");
    let rows = [
        (token.clone(), true),
        (format!("{token}Example"), true),
        (format!("{token}_example"), true),
        (format!("{token}YourReplaceDummyInsert"), true),
        (format!("{}_live_4eC39HqLyjWDarjtT1zdp7dcYOUR", "sk"), true),
        (format!("glpat-xK3v{}", "Q9sT2mLp7aRd4fWzExample"), true),
        // With that many placeholder words, the match is not a token.
        (format!("{token}{}", "Placeholder".repeat(4)), false),
        (format!("{}_yourTokenGoesHere1234567890abcdefghijkl", "ghp"), false),
        (format!("{}_live_4eC39HqExampleWDarjtT1zdp7dc", "sk"), false),
        (format!("{}_xxxxxxxxxxxxxxxxabcdefghijklmnopqrstuvwx", "ghp"), false),
    ];
    for (text, is_found) in rows {
        assert_eq!(redacted(&text) != text, is_found, "{text}");
        assert_eq!(chunked(&text, std::iter::repeat_n(1, text.len())), redacted(&text), "{text} in chunks");
    }
}

/// Some texts in the place of a password are not passwords.
#[test]
fn a_url_a_variable_or_a_placeholder_in_the_place_of_a_password_is_no_password() {
    let rows = [
        ("curl -u ana:q7Rt2LmX9w https://a.org", "curl -u ana:[assigned] https://a.org"),
        ("curl --user=ana:q7Rt2LmX9w\n", "curl --user=ana:[assigned]\n"),
        ("git push -u https://github.com/acme2/site main", "git push -u https://github.com/acme2/site main"),
        ("docker run -u 1000:1000 acme/worker", "docker run -u 1000:1000 acme/worker"),
        ("curl -u $USER:$API_TOKEN https://a.org", "curl -u $USER:$API_TOKEN https://a.org"),
        ("curl -u username:your-access-token https://a.org", "curl -u username:your-access-token https://a.org"),
        ("define('AUTH_SALT', 'b;Q7 r+T]2|Lm{X9w');", "define('AUTH_SALT', '[assigned]');"),
        ("define('AUTH_SALT', 'put your unique phrase here');", "define('AUTH_SALT', 'put your unique phrase here');"),
        ("define('WP_LANG', 'b;Q7 r+T]2|Lm{X9w');", "define('WP_LANG', 'b;Q7 r+T]2|Lm{X9w');"),
        ("password = \"Wq#Lm+TzKx\"", "password = \"[assigned]\""),
        ("token = \"VKahIbWdWhsvOsqiWYgb\"", "token = \"[assigned]\""),
        ("token = \"VeryLongNameOfSomeToken\"", "token = \"VeryLongNameOfSomeToken\""),
        ("machine a.org login ana password q7Rt2LmX9w", "machine a.org login ana password [assigned]"),
        ("the password sha256sum1 of it", "the password sha256sum1 of it"),
        ("auth=('ana', 'q7Rt2LmX9w')", "auth=('[assigned]')"),
        ("auth=('ana', 'your-password1')", "auth=('ana', 'your-password1')"),
        ("password = \"<Password>\"", "password = \"<Password>\""),
    ];
    for (text, expected) in rows {
        assert_eq!(redacted(text), expected);
        assert_eq!(chunked(text, std::iter::repeat_n(1, text.len())), expected, "{text} in chunks");
    }
}

/// A signed token (RFC 7519) has three parts, and an encrypted token (RFC 7516) has five.
#[test]
fn a_word_after_the_name_of_a_secret_in_prose_code_or_markup_is_no_secret() {
    let texts = [
        "<span class=\"token\">identifier</span>",
        "Log in with the password immediately; the login of ana has a password somewhere",
        "secret = generator\n",
        "def login(self):\n    token = counter\n",
        "Cookie: theme=LightModeHighContrast",
        "name: DB_PASSWORD\nvalueFrom: somewhere",
        "ENV DB_PASSWORD $POSTGRES_PASSWORD",
        "git checkout -b name=something-like-this",
        // `{"name":"parser","kind":"library"}`
        "eyJuYW1lIjoicGFyc2VyIiwia2luZCI6ImxpYnJhcnkifQ==",
    ];
    for text in texts {
        assert_eq!(redacted(text), text);
    }
}

#[test]
fn a_json_web_token_has_three_or_five_parts_and_excludes_text_after_a_full_stop() {
    let part = "q7Rt2LmX9wKd4VbN8sYh";
    let three = format!("eyJhbGciOiJIUzI1NiJ9.{part}.{part}");
    let dir = format!("eyJhbGciOiJkaXIifQ..{part}.{part}.{part}");
    for (token, after, left) in [
        (&three, "", ""),
        (&three, ". Then", ". Then"),
        (&three, ".git", ".git"),
        (&three, &format!(".{part}.{part}"), ""),
        (&three, &format!(".{part}.{part}.x"), ".x"),
        (&dir, ".", "."),
    ] {
        let text = format!("{token}{after}");
        assert_eq!(redacted(&text), format!("[jwt]{left}"));
        assert_eq!(chunked(&text, std::iter::repeat_n(1, text.len())), redacted(&text), "{text} in chunks");
    }
}

/// An empty finding would be found again and again.
#[test]
fn the_whole_match_is_the_secret_if_the_group_of_the_pattern_is_empty() {
    let rows = [
        ("()ac", "xacé", "x[own]é"),
        ("(b?)ac", "ac bac", "[own] [own][own]"),
        ("a(b?)c", "ac abc", "[own] a[own]c"),
        ("a(?:c|(b))", "ac ab", "[own] a[own]"),
    ];
    for (regex, text, expected) in rows {
        let scanner = Scanner::only([]).pattern("own", regex).expect("it is taken");
        let mut found = 0;
        let replaced = scanner.replace(text, |kind, _| {
            found += 1;
            assert!(found <= text.len(), "`{regex}` runs on in `{text}`");
            format!("[{kind}]")
        });
        assert_eq!(replaced, expected, "{regex}");
        let (mut chunks, mut out) = (scanner.chunks(), String::new());
        let mut give = |piece: Piece<'_>| match piece {
            Piece::Clean(clean) => out += clean,
            Piece::Secret(kind, _) => out += &format!("[{kind}]"),
        };
        text.chars().for_each(|c| chunks.push(c.encode_utf8(&mut [0; 4]), &mut give));
        chunks.finish(&mut give);
        assert_eq!(out, expected, "{regex} in chunks");
    }
}

/// All texts of the corpus, except the texts that are made from the table.
static TEXTS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let planted = PARTS[1..].iter().flat_map(|(_, half)| half.planted.iter().map(|planted| &*planted.text));
    planted.chain(PARTS[1..].iter().flat_map(|(_, half)| half.look_alikes.iter().map(|text| &**text))).collect()
});

/// Returns the texts by kind; look-alikes have the kind `""`.
fn texts_by_kind() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut texts = BTreeMap::<_, Vec<_>>::new();
    for (_, half) in &PARTS[1..] {
        half.planted.iter().for_each(|planted| texts.entry(planted.kind).or_default().push(&*planted.text));
        texts.entry("").or_default().extend(half.look_alikes.iter().map(|text| &**text));
    }
    texts
}

/// The number of chunk sizes for each kind. Small chunks are slow without optimization.
const SIZES_OF_EACH: usize = 15;

/// Evenly spaced texts of each kind are split into chunks. Each text gets the next chunk size from a shuffled list, so
/// that all kinds together cover all sizes.
#[test]
fn chunks_of_1_to_64_bytes_make_no_difference_to_texts_of_each_kind_of_the_corpus() {
    let texts_by_kind = texts_by_kind();
    assert!(texts_by_kind.len() * SIZES_OF_EACH >= 64, "too few kinds for all sizes");
    let mut sizes: Vec<_> = (1..=64).collect();
    Rng::with_seed(1).shuffle(&mut sizes);
    let mut sizes = sizes.into_iter().cycle();
    for (kind, texts) in texts_by_kind {
        for (nth, size) in (0..SIZES_OF_EACH).zip(&mut sizes) {
            let text = texts[nth * texts.len() / SIZES_OF_EACH];
            let chunks = std::iter::repeat_n(size, text.len().div_ceil(size));
            assert_eq!(chunked(text, chunks), redacted(text), "`{kind}` in chunks of {size}");
        }
    }
}

/// The check of an IP address may need the two characters after the address.
#[test]
fn a_chunked_ip_address_waits_for_the_characters_that_its_check_needs() {
    let (scanner, by) = (Scanner::only([Kind::Ip]), |kind: &Kind, _: &str| format!("[{kind}]"));
    for text in ["at 93.184.1.2.tar.gz", "at 93.184.1.2-rc1", "at 93.184.1.2.", "at 93.184.1.2-", "at 93.184.1.2: x"] {
        let chunks = std::iter::repeat_n(1, text.len());
        assert_eq!(chunked_by(&scanner, text, chunks, by), scanner.replace(text, by), "{text}");
    }
}

/// The texts begin a secret over and over, and never end it.
#[test]
fn no_more_text_than_the_window_is_held_back() {
    let scanner = Scanner::new();
    let begin = format!("-----BEGIN {}-----\n", "PRIVATE KEY");
    let line = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ\n";
    let again = ["a.", "1 ", "+1 2", "token=", "eyJabcdefgh-", "://a:", "a@b.", "2001:", "DE12 ", begin.as_str(), "é"];
    let texts = again.iter().map(|part| part.repeat(24_000 / part.len())).chain([begin.clone() + &line.repeat(600)]);
    for text in texts {
        let (mut chunks, mut out) = (scanner.chunks(), String::new());
        let mut give = |piece: Piece<'_>| match piece {
            Piece::Clean(clean) => out += clean,
            Piece::Secret(kind, _) => out += &format!("[{kind}]"),
        };
        for chunk in text.as_bytes().chunks(62) {
            chunks.push(std::str::from_utf8(chunk).expect("whole characters"), &mut give);
            assert!(chunks.held().len() <= scanner.window(), "{} bytes are held", chunks.held().len());
        }
        chunks.finish(&mut give);
        assert_eq!(out, redacted(&text));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Texts of the corpus, joined by a short separator or by none, in chunks of 1 to 64 bytes.
    #[test]
    fn chunked_corpus_texts_are_redacted_like_the_whole_text(
        picked in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
        glue in prop::sample::select(vec!["", " ", "\n", "é", "…", "-", "@", "1"]),
        sizes in prop::collection::vec(1_usize..=64, 0..400),
    ) {
        let text = picked.iter().map(|index| *index.get(&TEXTS)).collect::<Vec<_>>().join(glue);
        prop_assert_eq!(chunked(&text, sizes), redacted(&text));
    }

    /// Random texts of digits, letters, punctuation and the beginnings of secrets.
    #[test]
    fn chunked_random_text_is_redacted_like_the_whole_text(
        words in prop::collection::vec("[0-9]{1,5}|[a-zé]{1,4}|[@:/.+ -]|sk-|eyJ|token=|-----BEGIN PRIVATE KEY-----|-----END", 0..60),
        sizes in prop::collection::vec(1_usize..=64, 0..100),
    ) {
        let text = words.concat();
        prop_assert_eq!(chunked(&text, sizes), redacted(&text));
    }

    /// The replacement of a secret is not a secret.
    #[test]
    fn redacted_text_contains_no_secret(index in any::<prop::sample::Index>()) {
        let text = *index.get(&TEXTS);
        let once = redacted(text);
        prop_assert_eq!(redacted(&once), once);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Covers the beginning and end of a text, line breaks, and words with non-ASCII letters.
    #[test]
    fn custom_patterns_with_assertions_find_the_same_in_chunked_text(
        scanner in prop::sample::select(looking_around()),
        words in prop::collection::vec("[abé_]{1,3}|[ab]{1,12}|[ \\n\\r.]|1{1,9}|z{1,60}|é{1,30}", 0..40),
        sizes in prop::collection::vec(1_usize..=24, 0..100),
    ) {
        let (text, by) = (words.concat(), |kind: &Kind, secret: &str| format!("[{kind}:{secret}]"));
        prop_assert_eq!(chunked_by(&scanner, &text, sizes, by), scanner.replace(&text, by));
    }
}
