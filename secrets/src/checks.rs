//! The checks that a match must pass in addition to its pattern. For example, check digits must be valid, and
//! placeholders and version numbers are rejected.

use std::net::IpAddr;

/// A match and its surroundings. The surroundings are bounded, so that a check has the same result in a text and in its
/// chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'t> {
    /// At most [`BEFORE`](super::engine::BEFORE) bytes before the match, and the part of the match before its secret.
    pub(super) before: &'t str,
    pub(super) secret: &'t str,
    /// The minimum length of a secret of this format, in bytes.
    pub(super) shortest: usize,
    /// At most [`AFTER`](super::engine::AFTER) bytes after the match.
    pub(super) after: &'t str,
}

/// A function that returns the length of the secret in bytes, or `None` if the match is not a secret.
pub(super) type CheckFn = fn(&Candidate<'_>) -> Option<usize>;

fn all(candidate: &Candidate<'_>, passes: bool) -> Option<usize> {
    passes.then_some(candidate.secret.len())
}

pub(super) fn any(candidate: &Candidate<'_>) -> Option<usize> {
    all(candidate, true)
}

/// Accepts a random token: it has at least eight different characters, and is not a placeholder.
pub(super) fn token(candidate: &Candidate<'_>) -> Option<usize> {
    let least = &candidate.secret[..candidate.secret.floor_char_boundary(candidate.shortest)];
    let kinds = distinct(candidate.secret);
    // A placeholder word after the minimum length may be text that directly follows the token. Such words count only if
    // they make up more than half of the match.
    let is_word = is_placeholder(least) || 2 * placeholder_len(candidate.secret) > candidate.secret.len();
    all(candidate, kinds >= 8 && !is_word)
}

/// Accepts a random token whose end is marked by the pattern, for example by a quote.
pub(super) fn entire(candidate: &Candidate<'_>) -> Option<usize> {
    all(candidate, distinct(candidate.secret) >= 8 && !is_placeholder(candidate.secret))
}

/// Accepts a random token without a prefix: letters of both cases, usually with digits, or hexadecimal digits only. No
/// further characters of a token may follow.
pub(super) fn mixed(candidate: &Candidate<'_>) -> Option<usize> {
    let count = |test: fn(&u8) -> bool| candidate.secret.bytes().filter(test).count();
    let (upper, lower, digits) =
        (count(u8::is_ascii_uppercase), count(u8::is_ascii_lowercase), count(u8::is_ascii_digit));
    let is_hex = digits > 0 && candidate.secret.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_drawn = upper > 0 && lower > 0 && digits > 0 || upper.min(lower) > 2 && distinct(candidate.secret) > 11;
    let goes_on =
        candidate.after.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/' | '+'));
    token(candidate).filter(|_| (is_hex || is_drawn) && !goes_on)
}

/// Accepts a value that is assigned to a name, if it has letters and digits and is not a program expression.
pub(super) fn assigned(candidate: &Candidate<'_>) -> Option<usize> {
    let value = before_markup(candidate.secret).trim_end_matches(['.', ':', '?', '!', '>']);
    let is_called = value.len() == candidate.secret.len() && candidate.after.starts_with(['(', '[', '{']);
    (!is_called && is_password(value)).then_some(value.len())
}

/// Accepts a password together with its user name: `ana:…`, `('ana', '…')`.
pub(super) fn pair(candidate: &Candidate<'_>) -> Option<usize> {
    let value = candidate.secret.rsplit([':', '"', '\'']).next().unwrap_or_default();
    all(candidate, is_password(value) || is_jumbled(value))
}

/// Accepts a value that is assigned to a name, and also a value of letters.
pub(super) fn setting(candidate: &Candidate<'_>) -> Option<usize> {
    let is_word = candidate.secret.bytes().all(|byte| byte.is_ascii_alphabetic());
    let jumbled = || all(candidate, is_jumbled(candidate.secret));
    assigned(candidate).or_else(|| if is_word { letters(candidate) } else { jumbled() })
}

/// Accepts the content of an XML element that is named like a secret, or whose attribute `name` or `key` is. Other
/// attributes do not count: `<span class="token">`.
pub(super) fn element(candidate: &Candidate<'_>) -> Option<usize> {
    let tag = candidate.before.rsplit('<').next().unwrap_or_default();
    let is_named = !tag.contains(' ') || tag.contains(" name=") || tag.contains(" key=");
    setting(candidate).filter(|_| is_named)
}

/// Accepts a password that follows a login, as in `.netrc`. In prose, a word may follow `password`.
pub(super) fn login(candidate: &Candidate<'_>) -> Option<usize> {
    let found = if candidate.before.contains("machine ") { setting(candidate) } else { assigned(candidate) };
    found.filter(|_| candidate.before.contains("login "))
}

/// Accepts a quoted password that is assigned to a name, except a template or a call. The quotes mark its end.
pub(super) fn quoted(candidate: &Candidate<'_>) -> Option<usize> {
    let value = candidate.secret;
    let is_template =
        value.contains(['{', '}']) || value.contains("$(") || value.starts_with('<') && value.ends_with('>');
    let is_call = value.contains('(') && value.contains(')');
    (!is_template && !is_call && (is_password(value) || is_jumbled(value))).then_some(value.len())
}

/// Returns `true` for a value that looks random even without digits. Such a value mixes letters of both cases, and has
/// punctuation or more capitals than words have.
fn is_jumbled(value: &str) -> bool {
    let count = |test: fn(&char) -> bool| value.chars().filter(test).count();
    let signs = count(|c| matches!(c, '!' | '#' | '$' | '%' | '&' | '*' | '+' | '<' | '>' | '^' | '~'));
    let cases = count(char::is_ascii_uppercase).min(count(char::is_ascii_lowercase));
    let is_drawn = signs > 0 && cases > 2 || value.len() > 15 && 3 * cases >= value.len();
    is_drawn && distinct(value) > 9 && !is_placeholder(value) && !is_expression(value) && !is_variable(value)
}

fn is_password(value: &str) -> bool {
    let has = |test: fn(&char) -> bool| value.chars().any(|c| test(&c));
    let mixed = has(|c| c.is_ascii_digit()) && has(|c| c.is_alphabetic());
    let passes = value.len() >= 8 && mixed && distinct(value) >= 6 && !is_placeholder(value);
    passes && !is_expression(value) && !is_variable(value)
}

/// Returns `true` for `$NAME`, `${NAME}` and `$(command)`.
fn is_variable(value: &str) -> bool {
    let Some(name) = value.strip_prefix('$') else { return false };
    name.starts_with(['{', '('])
        || name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Returns the part of a value before a query parameter, an HTML entity, a tag or `&&`.
fn before_markup(value: &str) -> &str {
    let goes_on = |rest: &str| {
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        let len = rest.bytes().take_while(is_name).count();
        rest.starts_with('&') || len > 0 && rest[len..].starts_with('=') || ["amp", "lt", "gt", "quot"].contains(&rest)
    };
    let is_tag = |rest: &str| {
        let tag = rest.trim_start_matches('/');
        let len = tag.bytes().take_while(u8::is_ascii_alphabetic).count();
        rest.starts_with('/') || len > 0 && tag[len..].starts_with('>')
    };
    let ends = |(at, byte): (usize, u8)| match byte {
        b'&' => goes_on(&value[at + 1..]),
        b'<' => is_tag(&value[at + 1..]),
        _ => false,
    };
    let end = value.bytes().enumerate().skip(1).find(|at| ends(*at)).map_or(value.len(), |(at, _)| at);
    &value[..end]
}

/// Words of code, messages, types and schemas. A value of letters with such a word is no secret.
const COMMON_WORDS: &[&str] = &[
    "pass",
    "passw",
    "secret",
    "token",
    "user",
    "string",
    "require",
    "option",
    "undefined",
    "invalid",
    "missing",
    "incorrect",
    "confirm",
    "current",
    "hidden",
    "default",
    "plain",
    "crypt",
    "credential",
    "disable",
    "enable",
    "forgot",
    "function",
    "boolean",
    "object",
    "kennwort",
    "wachtwoord",
    "contrase",
    "motdepasse",
    "senha",
    "value",
    "field",
    "input",
    "null",
    "false",
    "prompt",
    "keyring",
    "anonymous",
    "unknown",
    "simple",
    "apikey",
    "auth",
    "bearer",
    "integer",
    "number",
    "array",
    "nullable",
    "generated",
    "vault",
    "manager",
    "external",
    "cookie",
    "binary",
    "varchar",
    "schema",
    "header",
    "mandatory",
    "provided",
    "geheim",
    "format",
    "description",
    "propert",
    "reference",
    "resource",
    "parameter",
    "response",
    "request",
    "writeonly",
    "readonly",
    "datetime",
    "inherit",
    "always",
    "never",
    "ignored",
    "preferred",
    "allowed",
    "forbidden",
    "expired",
    "revoked",
    "rotate",
    "expose",
    "masked",
    "database",
];

/// Accepts a password without digits, unless it contains a common word or a placeholder.
pub(super) fn letters(candidate: &Candidate<'_>) -> Option<usize> {
    // These words contain `pass` by chance.
    const OTHERS: [&str; 5] = ["compass", "passenger", "passage", "passion", "trespass"];
    let lower = candidate.secret.to_ascii_lowercase();
    let rest = OTHERS.iter().fold(lower.clone(), |rest, word| rest.replace(word, "-"));
    let is_word = COMMON_WORDS.iter().any(|word| rest.contains(word)) || is_placeholder(&lower);
    all(candidate, !is_word && distinct(&lower) >= 6)
}

/// Accepts a value of letters if its name begins the line, as in YAML and in environment files. In the middle of a
/// line, the name may be a word of a sentence or of a program. After `name = `, the value may be the name of a variable,
/// so it must look random.
pub(super) fn entry(candidate: &Candidate<'_>) -> Option<usize> {
    let line = candidate.before.rsplit('\n').next().unwrap_or_default();
    let line = line.trim_start_matches([' ', '\t', '-', '"', '\'']);
    let name = line.trim_end_matches([' ', '\t', '"', '\'', ':', '=']);
    let name = ["export ", "ENV ", "set "].iter().find_map(|command| name.strip_prefix(command)).unwrap_or(name);
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
    let is_spaced = line.trim_end_matches(['"', '\'']).ends_with([' ', '\t']) && !line.contains(':');
    letters(candidate).filter(|_| is_name && (!is_spaced || is_jumbled(candidate.secret)))
}

/// Accepts the value of a `Cookie` or `Set-Cookie` header if a cookie in it looks random. The attributes of a
/// `Set-Cookie` are not part of the secret.
pub(super) fn cookie(candidate: &Candidate<'_>) -> Option<usize> {
    let is_set = candidate.before.to_ascii_lowercase().contains("set-cookie");
    let len = if is_set { candidate.secret.find(';') } else { None }.unwrap_or(candidate.secret.len());
    // A blank separates cookies only after a semicolon.
    let ends = |(at, byte): (usize, u8)| byte == b' ' && !candidate.secret[..at].ends_with(';');
    let end = candidate.secret.bytes().take(len).enumerate().find(|at| ends(*at)).map_or(len, |(at, _)| at);
    let value = candidate.secret[..end].trim_end();
    let mut pairs = value.split(';').filter_map(|pair| pair.split_once('='));
    let is_session = |(name, value): (&str, &str)| is_random(value) || is_session_name(name) && is_mixed_case(value);
    pairs.any(is_session).then_some(value.len())
}

/// Accepts the value of a cookie that identifies a session.
pub(super) fn session(candidate: &Candidate<'_>) -> Option<usize> {
    all(candidate, is_random(candidate.secret) || is_mixed_case(candidate.secret))
}

fn is_session_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["sess", "sid", "auth", "token", "login", "remember", "jwt"].iter().any(|part| name.contains(part))
}

fn is_random(value: &str) -> bool {
    value.len() >= 16 && distinct(value) >= 8 && is_password(value)
}

/// Returns `true` for 16 or more letters of both cases, as random letters are.
fn is_mixed_case(value: &str) -> bool {
    let count = |test: fn(&u8) -> bool| value.bytes().filter(test).count();
    let upper = count(u8::is_ascii_uppercase);
    let lower = count(u8::is_ascii_lowercase);
    value.len() >= 16 && upper + lower == value.len() && upper.min(lower) > 2 && distinct(value) > 9
}

/// Accepts the base64 of a user and a password, as `docker login` stores it.
pub(super) fn docker_auth(candidate: &Candidate<'_>) -> Option<usize> {
    let login = decoded(candidate.secret);
    let user = login.iter().position(|byte| *byte == b':')?;
    all(candidate, user > 0 && login[..user].iter().all(u8::is_ascii_graphic) && login.len() > user + 4)
}

/// Accepts the base64 of a JSON object that has the login of a registry, as image pull secrets do.
pub(super) fn docker_config(candidate: &Candidate<'_>) -> Option<usize> {
    let json = decoded(candidate.secret);
    let has = |name: &str| memchr::memmem::find(&json, name.as_bytes()).is_some();
    all(candidate, [r#""auths""#, r#""auth""#, r#""password""#, r#""identitytoken""#].into_iter().any(has))
}

/// Decodes base64 up to the padding.
fn decoded(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::new();
    let mut bits = 0_u32;
    let mut len = 0;
    for value in text.bytes().map_while(digit) {
        (bits, len) = (bits << 6 | u32::from(value), len + 6);
        if len >= 8 {
            len -= 8;
            bytes.push((bits >> len) as u8);
            bits &= (1 << len) - 1;
        }
    }
    bytes
}

/// Accepts a US social security number, except numbers that the Social Security Administration never assigns.
pub(super) fn ssn(candidate: &Candidate<'_>) -> Option<usize> {
    let digits: String = candidate.secret.chars().filter(char::is_ascii_digit).collect();
    let area = digits.get(..3)?;
    let group = digits.get(3..5)?;
    let serial = digits.get(5..)?;
    all(candidate, !["000", "666"].contains(&area) && group != "00" && serial != "0000" && !goes_on(candidate))
}

pub(super) fn url_password(candidate: &Candidate<'_>) -> Option<usize> {
    let known = ["pass", "password", "passwd", "pwd", "secret", "token", "pw", "xxx"];
    let lower = candidate.secret.to_ascii_lowercase();
    let is_word = known.contains(&lower.as_str());
    // A bracket at the start means that the password was replaced, as in `[REDACTED]`.
    let is_replaced = candidate.secret.starts_with('[');
    all(candidate, !is_word && !is_replaced && !is_placeholder(candidate.secret) && distinct(candidate.secret) > 2)
}

/// Returns the number of different bytes of a text, without regard to their highest bit. For ASCII text, this is the
/// number of different characters.
fn distinct(text: &str) -> u32 {
    let bits = text.bytes().fold(0_u128, |seen, byte| seen | 1 << (byte & 127));
    bits.count_ones()
}

/// Words that occur in placeholders for secrets.
const PLACEHOLDER_WORDS: [&str; 14] = [
    "example",
    "your",
    "xxxx",
    "placeholder",
    "changeme",
    "change-me",
    "change_me",
    "redacted",
    "dummy",
    "sample",
    "insert",
    "replace",
    "...",
    "***",
];

fn is_placeholder(text: &str) -> bool {
    placeholder_len(text) > 0
}

/// Returns the number of bytes of a text that belong to placeholder words.
fn placeholder_len(text: &str) -> usize {
    let lower = text.to_ascii_lowercase();
    // `xxxx` in mixed case may be random.
    let counts = |word: &&&str| **word != "xxxx" || text.contains("xxxx") || text.contains("XXXX");
    PLACEHOLDER_WORDS.iter().filter(counts).map(|word| lower.matches(word).count() * word.len()).sum()
}

/// Returns `true` for a path of fields, such as `config.password2`, for a URL, and for a value whose first character,
/// such as `/` or `%`, suggests an expression.
fn is_expression(value: &str) -> bool {
    let is_name = |part: &str| part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && part.len() < 24;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut parts = value.split(['.', ':']);
    let is_path = value.contains(['.', ':']) && parts.all(|part| is_name(part) && part.chars().all(is_word));
    is_path || value.contains("://") || value.starts_with(['/', '.', '%', '@', '!', '#', '='])
}

pub(super) fn email(candidate: &Candidate<'_>) -> Option<usize> {
    const FILES: [&str; 15] =
        ["png", "jpg", "jpeg", "gif", "svg", "webp", "css", "js", "ts", "json", "html", "map", "md", "rs", "py"];
    let (local, host) = candidate.secret.split_once('@')?;
    // `logo@2x.png` is a file, not an address.
    let top = host.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_file = FILES.contains(&top.as_str());
    // These are not addresses: `git@host:path`, `scheme://user@host`, `scheme://user:password@host`.
    let authority = candidate.before.rsplit_once("://").map(|(_, authority)| authority);
    let is_authority = authority.is_some_and(|authority| !authority.contains(['/', '?', ' ', '\n']));
    let is_remote = candidate.after.starts_with(':') && local == "git" || is_authority;
    all(candidate, !is_file && !is_remote && !host.contains("..") && !local.contains(".."))
}

/// Accepts a card number that passes Luhn's check (ISO/IEC 7812-1) and has a length and prefix that an issuer uses.
pub(super) fn card(candidate: &Candidate<'_>) -> Option<usize> {
    let digits: Vec<u32> = candidate.secret.chars().filter_map(|c| c.to_digit(10)).collect();
    all(candidate, !goes_on(candidate) && is_consistent(candidate.secret) && is_issued(&digits) && luhn(&digits))
}

/// Returns `true` if all separators are the same, or if there are no separators.
fn is_consistent(number: &str) -> bool {
    let mut between = number.chars().filter(|c| !c.is_ascii_digit());
    let first = between.next();
    between.all(|c| Some(c) == first)
}

fn is_issued(digits: &[u32]) -> bool {
    let begins = |len: usize| digits.iter().take(len).fold(0, |number, digit| number * 10 + digit);
    // The length, and the first four digits.
    matches!(
        (digits.len(), begins(4)),
        (13 | 16 | 19, 4000..=4999)
            | (16, 2221..=2720 | 3528..=3589 | 5018..=5038 | 5100..=5599 | 6011 | 6440..=6599)
            | (16 | 19, 6200..=6299)
            | (15, 3400..=3499 | 3700..=3799)
            | (14, 3000..=3059 | 3600..=3699 | 3800..=3999)
    )
}

fn luhn(digits: &[u32]) -> bool {
    let doubled = |(place, digit): (usize, &u32)| match (place % 2, digit * 2) {
        (0, _) => *digit,
        (_, twice) if twice > 9 => twice - 9,
        (_, twice) => twice,
    };
    digits.iter().rev().enumerate().map(doubled).sum::<u32>() % 10 == 0
}

/// Returns `true` if a digit follows the match, either directly or after `-` or `.`.
fn goes_on(candidate: &Candidate<'_>) -> bool {
    let rest = candidate.after.strip_prefix(['-', '.', ' ']).unwrap_or(candidate.after);
    let is_joined = rest.len() == candidate.after.len() || !candidate.after.starts_with(' ');
    is_joined && rest.starts_with(|c: char| c.is_ascii_digit())
}

/// Accepts an IBAN (ISO 13616) that has the length that its country uses and the remainder 1 modulo 97.
pub(super) fn iban(candidate: &Candidate<'_>) -> Option<usize> {
    let len = iban_length(candidate.secret.get(..2)?)?;
    let end = candidate.secret.char_indices().filter(|(_, c)| *c != ' ').nth(len - 1)?.0 + 1;
    let number = &candidate.secret[..end];
    let ends = !candidate.secret[end..].starts_with(|c: char| c.is_ascii_alphanumeric());
    // Move the country and the check digits to the end, and count each letter as two digits.
    let moved = number.chars().skip(4).chain(number.chars().take(4));
    let values = moved.filter_map(|c| c.to_digit(36));
    let rest = values.fold(0, |rest, value| (rest * if value > 9 { 100 } else { 10 } + value) % 97);
    (ends && rest == 1).then_some(end)
}

/// Returns the length of a country's IBANs, from release 99 of SWIFT's IBAN registry.
fn iban_length(country: &str) -> Option<usize> {
    const LENGTHS: &str = "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BI27BR29BY28CH21CR22CY28CZ24DE22DJ27DK18DO28EE20EG29ES24\
                           FI18FK18FO18FR27GB22GE22GI23GL18GR27GT28HN28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20LB28LC32LI21\
                           LT20LU20LV21LY25MC27MD24ME22MK19MN20MR27MT31MU30NI28NL18NO15OM23PK24PL28PS29PT25QA29RO24RS22\
                           RU33SA24SC31SD18SE24SI19SK24SM27SO23ST25SV28TL23TN24TR26UA29VA22VG24XK20YE30";
    let mut entries = LENGTHS.as_bytes().chunks(4).filter_map(|entry| std::str::from_utf8(entry).ok());
    entries.find_map(|entry| entry.strip_prefix(country)?.parse().ok())
}

/// Accepts a phone number (ITU-T E.164): `+` and 8 to 15 digits, `+1` and 10 more digits, or 10 digits without `+`.
/// Further groups of digits are not part of the number.
pub(super) fn phone(candidate: &Candidate<'_>) -> Option<usize> {
    let (least, most) = match candidate.secret.as_bytes() {
        [b'+', b'1', ..] => (11, 11),
        [b'+', ..] => (8, 15),
        _ => (10, 10),
    };
    let ends = candidate.secret.char_indices().filter(|(_, c)| c.is_ascii_digit()).map(|(at, _)| at + 1);
    let ends: Vec<usize> = ends.take(most + 1).collect();
    let is_end = |end: &usize| !candidate.secret[*end..].starts_with(|c: char| c.is_ascii_digit());
    let end = *ends.iter().take(most).skip(least - 1).rfind(|end| is_end(end))?;
    let cut = end < candidate.secret.len();
    (cut || !goes_on(candidate)).then_some(end)
}

pub(super) fn ip(candidate: &Candidate<'_>) -> Option<usize> {
    let is_public = match candidate.secret.parse().ok()? {
        IpAddr::V4(ip) => {
            let is_special = ip.is_loopback() || ip.octets()[0] == 0 || ip.octets()[0] == 255;
            !is_special && !is_version(candidate)
        }
        IpAddr::V6(ip) => {
            let link_local = ip.segments()[0] & 0xffc0 == 0xfe80;
            !ip.is_loopback()
                && !link_local
                && candidate.secret.contains(|c: char| c.is_ascii_digit())
                && !is_longer(candidate)
        }
    };
    all(candidate, is_public)
}

/// Returns `true` if the match is the beginning of something longer: `1.2.3.4.5`, `1.2.3.4-rc1`, `1.2.3.4.tar.gz`,
/// `1:2:3:x`.
fn is_longer(candidate: &Candidate<'_>) -> bool {
    let mut after = candidate.after.chars();
    match (after.next(), after.next()) {
        (Some('.' | ':'), Some(next)) => {
            next.is_ascii_alphanumeric() && !(next.is_ascii_digit() && candidate.after.starts_with(':'))
        }
        (Some('-'), Some(next)) => next.is_ascii_alphabetic(),
        _ => false,
    }
}

fn is_version(candidate: &Candidate<'_>) -> bool {
    const VERSION_WORDS: [&str; 12] = [
        "version", "ver", "v", "release", "firmware", "upgrade", "install", "section", "chapter", "oid", "build", "rev",
    ];
    // These are versions of products: `name-1.2.3.4`, `name@1.2.3.4`, `name==1.2.3.4`, `name/1.2.3.4`.
    let is_login = ["ssh", "scp", "sftp", "rsync"].iter().any(|program| candidate.before.contains(program));
    let glued = candidate.before.ends_with(['-', '_', '~', '^'])
        || candidate.before.ends_with('@') && !is_login
        || candidate.before.ends_with("==");
    let is_product = candidate.before.ends_with('/') && !candidate.before.ends_with("//");
    let words = candidate.before.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty());
    let mut last = words.rev().take(3).map(str::to_ascii_lowercase);
    glued
        || is_product
        || is_longer(candidate)
        || last.any(|word| VERSION_WORDS.contains(&word.as_str()) || word.ends_with("version"))
}
