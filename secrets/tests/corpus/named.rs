//! Lines in which a name or a prefix means a secret: environment files and YAML with values of letters only, cookies,
//! `auth` of docker, and bare keys of providers. 200 lines of each form, written before the rules for them.
//!
//! Half of the lines are held out: they have names, values and texts of their own, and no rule is tuned on them.
//! `‹a36›` stands for 36 letters and digits, see [`chars`](super::third); `§` stands for the secret, `%` for a name.

use fastrand::Rng;

use super::third::made;
use super::{Half, Planted};

/// The lines of a form in each half.
const LINES: usize = 100;

/// The words, names and texts of one half.
struct Source {
    words: &'static [&'static str],
    names: &'static [&'static str],
    env: &'static [&'static str],
    yaml: &'static [&'static str],
    cookies: &'static [&'static str],
    cookie_texts: &'static [&'static str],
    auth_texts: &'static [&'static str],
    bare: &'static [&'static str],
    seed: u64,
}

impl Half {
    pub(crate) fn named() -> Self {
        of(&TUNED)
    }

    pub(crate) fn named_held_out() -> Self {
        of(&HELD_OUT)
    }
}

fn of(source: &Source) -> Half {
    let rng = &mut Rng::with_seed(source.seed);
    let mut planted = Vec::new();
    for nth in 0..LINES {
        let pick = |from: &'static [&'static str]| from[nth % from.len()];
        let name = source.names[nth * 7 % source.names.len()];
        let (env, yaml, auth) = (letters(source, rng), letters(source, rng), docker_auth(source, rng));
        let (cookie, key) = (made(pick(source.cookies), rng), made(BARE[nth % BARE.len()].1, rng));
        let text = |template: &str, secret: &str, name: &str| template.replace('%', name).replace('§', secret);
        let mut add = |kind, text, secret| planted.push(Planted { kind, text, secret });
        add("assigned: environment", text(pick(source.env), &env, &name.to_ascii_uppercase()), env);
        add("assigned: YAML", text(pick(source.yaml), &yaml, name), yaml);
        add("cookie", text(source.cookie_texts[nth / 3 % source.cookie_texts.len()], &cookie, "theme=dark"), cookie);
        add("docker_auth", text(pick(source.auth_texts), &auth, "registry"), auth);
        add(BARE[nth % BARE.len()].0, text(source.bare[nth / BARE.len() % source.bare.len()], &key, "key"), key);
    }
    Half { planted, look_alikes: Vec::new() }
}

/// Returns one long word or two words, in lower case, with capitals, or in upper case.
fn letters(source: &Source, rng: &mut Rng) -> String {
    let word = |rng: &mut Rng| source.words[rng.usize(..source.words.len())].to_owned();
    let mut value = word(rng);
    while value.len() < 8 || distinct(&value) < 6 {
        value += &word(rng);
    }
    match rng.u8(..6) {
        0 => value.to_ascii_uppercase(),
        1 => value[..1].to_ascii_uppercase() + &value[1..],
        _ => value,
    }
}

fn distinct(text: &str) -> usize {
    ('a'..='z').filter(|c| text.contains(*c)).count()
}

/// Returns the base64 of a user and a password, as `docker login` writes it.
fn docker_auth(source: &Source, rng: &mut Rng) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let user = source.words[rng.usize(..source.words.len())];
    let text = format!("{user}:{}", made("‹a18›", rng));
    let mut encoded = String::new();
    for three in text.as_bytes().chunks(3) {
        let bits = three.iter().fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - three.len()));
        for nth in 0..4 {
            let is_text = nth <= three.len();
            encoded.push(if is_text { char::from(ALPHABET[bits >> (18 - 6 * nth) & 63]) } else { '=' });
        }
    }
    encoded
}

/// Formats of keys that are recognized without a name, from the providers' documentation.
const BARE: [(&str, &str); 14] = [
    ("model_key", "nv‹›api-‹b64›"),
    ("model_key", "c‹›sk-‹l48›"),
    ("model_key", "tgp‹›_v1_‹b43›"),
    ("tavily_key", "tv‹›ly-‹a32›"),
    ("figma_token", "fi‹›gd_‹b40›"),
    ("hubspot_token", "pat‹›-na1-‹x8›-‹x4›-‹x4›-‹x4›-‹x12›"),
    ("tailscale_key", "ts‹›key-auth-k‹a11›CNTRL-‹a32›"),
    ("neon_key", "na‹›pi_‹x64›"),
    ("posthog_key", "ph‹›x_‹a43›"),
    ("resend_key", "r‹›e_‹a8›_‹a24›"),
    ("contentful_token", "CF‹›PAT-‹b43›"),
    ("sourcegraph_token", "sg‹›p_‹x16›_‹x40›"),
    ("prefect_key", "pn‹›u_‹a36›"),
    ("typeform_token", "tf‹›p_‹b44›_‹a14›"),
];

const TUNED: Source = Source {
    words: &[
        "hunter", "sword", "fish", "butter", "dragon", "monkey", "summer", "winter", "orange", "purple", "silver",
        "tiger", "sunshine", "football", "whiskey", "mustang", "panther", "coffee", "banana", "thunder", "lantern",
        "pepper", "ginger", "walnut", "harbour", "meadow", "cactus", "velvet", "marble", "falcon",
    ],
    names: &[
        "app_secret",
        "db_password",
        "api_token",
        "session_secret",
        "redis_password",
        "smtp_password",
        "api_key",
        "jwt_secret",
        "admin_password",
        "webhook_secret",
        "signing_key",
        "mysql_root_password",
        "client_secret",
    ],
    env: &[
        "%=§",
        "%=§\nPORT=8080",
        "export %=§\n",
        "LOG=info\n%=§\n",
        "%=\"§\"\n",
        "docker run -e %=§ web",
        "%=§\r\nA=1",
    ],
    yaml: &["%: §", "db:\n  host: db\n  %: §\n", "- %: §\n", "  %: §\n  port: 5432", "%: §  # for tests\n", "%: '§'\n"],
    cookies: &["‹x32›", "‹a26›", "‹b43›", "s%3A‹b32›.‹b43›", "‹a64›"],
    cookie_texts: &[
        "Cookie: sessionid=§",
        "Cookie: %; sid=§; lang=en",
        "Set-Cookie: SID=§; Path=/; HttpOnly",
        "-H 'Cookie: PHPSESSID=§'",
        "\"cookie\": \"connect.sid=§; %\"",
        "curl -b \"JSESSIONID=§\" https://tide.dev",
    ],
    auth_texts: &[
        "{\"auths\":{\"%.tide.dev\":{\"auth\":\"§\"}}}",
        "      \"auth\": \"§\"",
        "\"auth\": \"§\",\n\"email\": \"\"",
        "auths:\n  %.tide.dev:\n    auth: §\n",
        "{\\\"auths\\\":{\\\"%\\\":{\\\"auth\\\":\\\"§\\\"}}}",
    ],
    bare: &["§", "it is § here", "[§]", "use §, then log in\n", "%: §", "a\n§\nb", "(§)", "echo §"],
    seed: 11,
};

const HELD_OUT: Source = Source {
    words: &[
        "magnolia", "badger", "copper", "lobster", "compass", "glacier", "raven", "willow", "pumpkin", "rocket",
        "yellow", "starling", "crimson", "juniper", "basket", "wander", "cobalt", "zephyr", "quartz", "saffron",
        "bicycle", "mountain", "sparrow", "tundra", "vortex", "melody", "gravel", "hazel", "charlie", "princess",
    ],
    names: &[
        "payment_secret",
        "ftp_password",
        "bot_token",
        "secret_key_base",
        "vpn_passphrase",
        "rabbitmq_default_pass",
        "encryption_key",
        "oauth_client_secret",
        "keystore_password",
        "refresh_token",
        "ldap_bind_password",
        "slack_signing_secret",
        "access_key",
        "pg_pwd",
        "master_password",
        "deploy_token",
        "maps_api_key",
    ],
    env: &[
        "%=§\n",
        "A=b\nexport %=§\nC=d\n",
        "# local only\n%=§\n\n",
        "  %=§\n",
        "%='§'\n",
        "ENV %=§\n",
        "set %=§\r\n",
        "%=§ cargo run",
        "env %=§ ./start.sh --port 80",
    ],
    yaml: &[
        "%: §\n",
        "server:\n    port: 1\n    %: §\n    tls: true\n",
        "environment:\n  - x: y\n  - %: §",
        "\t%: §\n",
        "a:\n  %: \"§\"\n",
        "%: §\r\nnext: 1\r\n",
        "data:\n  %: § # rotate in May\n  user: ana\n",
        "mail.%: §\n",
    ],
    cookies: &["‹x40›", "‹a32›", "‹b22›", "‹x8›-‹x4›-4‹x3›-a‹x3›-‹x12›", "‹b86›"],
    cookie_texts: &[
        "cookie: __Host-session=§; %\r\n",
        "< set-cookie: _tide_session=§; path=/; secure; SameSite=Lax",
        "GET / HTTP/1.1\r\nHost: tide.dev\r\nCookie: %; remember_token=§\r\n\r\n",
        "curl --cookie 'auth=§' https://api.tide.dev/me",
        "headers = {\"Cookie\": \"ASP.NET_SessionId=§\"}",
        "headers: { Cookie: `laravel_session=§; %` }",
    ],
    auth_texts: &[
        "{\n  \"auths\": {\n    \"ghcr.io\": {\n      \"auth\": \"§\"\n    }\n  }\n}",
        "\"https://index.docker.io/v1/\": { \"auth\" : \"§\" }",
        "echo '{\"auths\":{\"quay.io\":{\"auth\":\"§\"}}}' > ~/.docker/config.json",
        "  quay.io:\n    auth: \"§\"\n",
        "DOCKER_AUTH_CONFIG={\"auths\":{\"%\":{\"auth\":\"§\"}}}",
    ],
    bare: &["§\n", "the new one: §.", "<§>", "{\"value\":\"§\"}", "try § please", "- §\n- other", "x=§;", "'§'"],
    seed: 12,
};
