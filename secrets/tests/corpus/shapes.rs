//! Made-up secrets, from pieces and a seed: none of them was ever issued, and none is written in the source.

use std::fmt::Write as _;

use fastrand::Rng;

const LOWER: &str = "abcdefghijklmnopqrstuvwxyz";
const UPPER: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const DIGITS: &str = "0123456789";

/// Returns `len` random characters of an alphabet that is given in parts.
pub(crate) fn of(rng: &mut Rng, parts: &[&str], len: usize) -> String {
    let alphabet: Vec<char> = parts.concat().chars().collect();
    (0..len).map(|_| alphabet[rng.usize(..alphabet.len())]).collect()
}

pub(crate) fn hex(rng: &mut Rng, len: usize) -> String {
    of(rng, &["0123456789abcdef"], len)
}

pub(crate) fn alphanumeric(rng: &mut Rng, len: usize) -> String {
    of(rng, &[LOWER, UPPER, DIGITS], len)
}

fn url_safe(rng: &mut Rng, len: usize) -> String {
    of(rng, &[LOWER, UPPER, DIGITS, "-_"], len)
}

pub(crate) fn base64(rng: &mut Rng, len: usize) -> String {
    of(rng, &[LOWER, UPPER, DIGITS, "+/"], len)
}

pub(crate) fn digits(rng: &mut Rng, len: usize) -> String {
    of(rng, &[DIGITS], len)
}

fn pick<'a>(rng: &mut Rng, from: &[&'a str]) -> &'a str {
    from[rng.usize(..from.len())]
}

/// Returns a secret of a kind, by the kind's name.
pub(crate) fn secret(kind: &str, rng: &mut Rng) -> String {
    match kind {
        "email" => email(rng),
        "phone" => phone(rng),
        "card" => card(rng),
        "ip" => ip(rng),
        "iban" => iban(rng),
        "aws_key" => format!("{}{}", pick(rng, &["AK", "AS"]), "IA") + &of(rng, &[UPPER, "234567"], 16),
        "github_token" => github(rng),
        "gitlab_token" => format!("gl{}-{}", "pat", url_safe(rng, 20)),
        "slack_token" => slack(rng),
        "stripe_key" => stripe(rng),
        "model_key" => model(rng),
        "google_key" => format!("AI{}{}", "za", url_safe(rng, 35)),
        "jwt" => jwt(rng),
        "private_key" => private_key(rng),
        "package_token" => package(rng),
        "mail_key" => format!("S{}{}.{}", "G.", url_safe(rng, 22), url_safe(rng, 43)),
        "azure_key" => base64(rng, 86) + "==",
        "url_password" => password(rng),
        "assigned" => password(rng),
        other => panic!("no shape for `{other}`"),
    }
}

fn email(rng: &mut Rng) -> String {
    let first = pick(rng, &["maria", "j.doe", "li.wei", "o_brien", "sales+eu", "k-larsen", "a1"]);
    let host = pick(rng, &["mailbox.org", "corp.acme-tools.co.uk", "uni-hamburg.de", "fastmail.com", "sub.shop.io"]);
    let tail = digits(rng, 2);
    format!("{first}{tail}@{host}")
}

fn phone(rng: &mut Rng) -> String {
    let (a, b, c) = (rng.u32(201..989), rng.u32(200..999), rng.u32(1000..9999));
    match rng.u8(..7) {
        0 => format!("+1 {a} {b} {c}"),
        1 => format!("({a}) {b}-{c}"),
        2 => format!("+1-{a}-{b}-{c}"),
        3 => format!("+49 30 {}", digits(rng, 7)),
        4 => format!("+44 20 7946 0{b}"),
        5 => format!("+33 1 {} {} {} {}", digits(rng, 2), digits(rng, 2), digits(rng, 2), digits(rng, 2)),
        _ => format!("+1{a}{b}{c}"),
    }
}

/// Returns a card number with the digit that makes it pass Luhn's check.
fn card(rng: &mut Rng) -> String {
    let (prefix, len) = [("4", 16), ("52", 16), ("37", 15), ("4", 16)][rng.usize(..4)];
    let body = format!("{prefix}{}", digits(rng, len - 1 - prefix.len()));
    let check = (0..10).find(|check| luhn(&format!("{body}{check}"))).expect("one of ten does");
    let number = format!("{body}{check}");
    match (len, rng.u8(..3)) {
        (16, 0) => groups(&number, &[4, 4, 4, 4], " "),
        (16, 1) => groups(&number, &[4, 4, 4, 4], "-"),
        (15, 0) => groups(&number, &[4, 6, 5], " "),
        _ => number,
    }
}

pub(crate) fn luhn(number: &str) -> bool {
    let doubled = |(i, digit): (usize, u32)| match (i % 2, digit * 2) {
        (0, _) => digit,
        (_, twice) if twice > 9 => twice - 9,
        (_, twice) => twice,
    };
    number.chars().rev().filter_map(|c| c.to_digit(10)).enumerate().map(doubled).sum::<u32>() % 10 == 0
}

fn groups(text: &str, lens: &[usize], by: &str) -> String {
    let mut rest = text;
    let take = |len: &usize| {
        let (group, after) = rest.split_at(*len);
        rest = after;
        group.to_owned()
    };
    lens.iter().map(take).collect::<Vec<_>>().join(by)
}

fn ip(rng: &mut Rng) -> String {
    match rng.u8(..4) {
        0 => (0..8).map(|_| format!("{:x}", rng.u16(0x1000..))).collect::<Vec<_>>().join(":"),
        1 => format!("2a02:{:x}::{:x}", rng.u16(0x100..), rng.u16(0x10..)),
        _ => format!("{}.{}.{}.{}", rng.u8(11..223).max(128), rng.u8(..), rng.u8(..), rng.u8(1..)),
    }
}

/// Returns an IBAN with valid check digits.
fn iban(rng: &mut Rng) -> String {
    let (country, account) = match rng.u8(..3) {
        0 => ("DE", digits(rng, 18)),
        1 => ("GB", format!("NWBK{}", digits(rng, 14))),
        _ => ("FR", digits(rng, 23)),
    };
    let check = 98 - modulo_97(&format!("{account}{country}00"));
    let number = format!("{country}{check:02}{account}");
    if rng.bool() {
        let quads = number.as_bytes().chunks(4).map(|quad| String::from_utf8_lossy(quad).into_owned());
        return quads.collect::<Vec<_>>().join(" ");
    }
    number
}

pub(crate) fn modulo_97(text: &str) -> u32 {
    let values = text.chars().filter_map(|c| c.to_digit(36));
    values.fold(0, |rest, value| if value > 9 { (rest * 100 + value) % 97 } else { (rest * 10 + value) % 97 })
}

fn github(rng: &mut Rng) -> String {
    if rng.u8(..4) == 0 {
        return format!("github_{}_{}_{}", "pat", alphanumeric(rng, 22), alphanumeric(rng, 59));
    }
    format!("gh{}_{}", pick(rng, &["p", "o", "u", "s", "r"]), alphanumeric(rng, 36))
}

fn slack(rng: &mut Rng) -> String {
    let (a, b, c) = (digits(rng, 12), digits(rng, 12), alphanumeric(rng, 24));
    if rng.u8(..3) == 0 {
        let (team, bot) = (of(rng, &[UPPER, DIGITS], 8), of(rng, &[UPPER, DIGITS], 10));
        return format!("https://hooks.{}.com/services/T{team}/B{bot}/{c}", "slack");
    }
    format!("xo{}-{a}-{b}-{c}", pick(rng, &["xb", "xp"]))
}

fn stripe(rng: &mut Rng) -> String {
    let len = rng.usize(24..60);
    format!("{}_{}_{}", pick(rng, &["sk", "rk"]), pick(rng, &["live", "test"]), alphanumeric(rng, len))
}

fn model(rng: &mut Rng) -> String {
    match rng.u8(..4) {
        0 => format!("sk-{}{}T3BlbkFJ{}", "", alphanumeric(rng, 20), alphanumeric(rng, 20)),
        1 => format!("sk-{}-{}", "proj", url_safe(rng, 120) + "Ab3"),
        2 => format!("sk-{}-api03-{}AA", "ant", url_safe(rng, 93)),
        _ => format!("h{}_{}", "f", of(rng, &[LOWER, UPPER], 34)),
    }
}

fn jwt(rng: &mut Rng) -> String {
    let (a, b) = (rng.usize(30..60), rng.usize(60..400));
    format!("ey{}{}.eyJ{}.{}", "J", alphanumeric(rng, a), alphanumeric(rng, b), url_safe(rng, 43) + "x")
}

fn private_key(rng: &mut Rng) -> String {
    let what = pick(rng, &["RSA ", "EC ", "OPENSSH ", "", "ENCRYPTED "]);
    let mut text = format!("-----BEGIN {what}PRIVATE {}-----\n", "KEY");
    for _ in 0..rng.usize(4..27) {
        let _ = writeln!(text, "{}", base64(rng, 64));
    }
    text + &format!("{}\n-----END {what}PRIVATE KEY-----", base64(rng, 30) + "==")
}

fn package(rng: &mut Rng) -> String {
    match rng.u8(..3) {
        0 => format!("py{}-AgEIcHlwaS5vcmc{}", "pi", url_safe(rng, 140) + "z"),
        _ => format!("np{}_{}", "m", alphanumeric(rng, 36)),
    }
}

/// Mixes several classes of characters, so that the password is not a word.
fn password(rng: &mut Rng) -> String {
    let len = rng.usize(7..20);
    format!("{}{}{}{}", of(rng, &[UPPER], 1), of(rng, &[LOWER], 2), digits(rng, 2), alphanumeric(rng, len))
}
