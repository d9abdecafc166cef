//! The third part of the corpus, written by an author who had seen neither the other parts nor the rules. It has its
//! own shapes, from the providers' documentation.
//!
//! `‹a36›` stands for 36 letters and digits, see [`chars`]; `§` stands for the secret.

use fastrand::Rng;

use super::{Half, Planted};

impl Half {
    pub(crate) fn third() -> Self {
        let rng = &mut Rng::with_seed(3);
        let planted = PLANTED.iter().flat_map(|(kind, rows)| rows.iter().map(move |row| (*kind, *row)));
        let planted = planted.map(|(kind, (secret, text))| {
            let secret = made(secret, rng);
            Planted { kind, text: made(text, rng).replace('§', &secret), secret }
        });
        let planted = planted.collect();
        Self { planted, look_alikes: LOOK_ALIKES.iter().map(|text| made(text, rng)).collect() }
    }
}

/// Replaces the placeholders of a template with made-up values.
pub(super) fn made(template: &str, rng: &mut Rng) -> String {
    let mut text = String::new();
    for (i, part) in template.split(['‹', '›']).enumerate() {
        match part.split_at(part.ceil_char_boundary(1)) {
            _ if i % 2 == 0 => text += part,
            ("J", json) => text += &base64_url(json.as_bytes()),
            ("L", _) => text.push(luhn_digit(&text)),
            // A wrong check digit.
            ("W", _) => text.push(char::from(b'0' + (luhn_digit(&text) as u8 - b'0' + 1) % 10)),
            ("I", _) => text += "00",
            // An empty placeholder, so that no text in this file looks like a secret in source code.
            ("", _) => {}
            (class, count) => {
                let chars = chars(class);
                (0..count.parse().expect("a number")).for_each(|_| text.push(chars[rng.usize(..chars.len())].into()));
            }
        }
    }
    if template.contains("‹I›") { with_check(&text) } else { text }
}

fn chars(class: &str) -> Vec<u8> {
    let (upper, lower, digits) = (b'A'..=b'Z', b'a'..=b'z', b'0'..=b'9');
    match class {
        "a" => upper.chain(lower).chain(digits).collect(),
        "b" => upper.chain(lower).chain(digits).chain(*b"-_").collect(),
        "s" => upper.chain(lower).chain(digits).chain(*b"+/").collect(),
        "p" => upper.chain(lower).chain(digits).chain(*b"!#%*+-_.").collect(),
        "l" => lower.chain(digits).collect(),
        "U" => upper.chain(digits).collect(),
        "u" => upper.chain(b'2'..=b'7').collect(),
        "B" => b"QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L".to_vec(),
        "x" => digits.chain(b'a'..=b'f').collect(),
        "X" => digits.chain(b'A'..=b'F').collect(),
        "d" => digits.collect(),
        "n" => (b'1'..=b'9').collect(),
        "A" => upper.chain(lower).collect(),
        "v" => upper.chain(lower).chain(digits).chain(*b"!#$%&()*+,-./:;=?@[]^_{|}~").collect(),
        _ => panic!("no class of characters: `{class}`"),
    }
}

pub(super) fn base64_url(bytes: &[u8]) -> String {
    let digits: Vec<u8> = (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').chain(*b"-_").collect();
    let sextets = bytes.chunks(3).flat_map(|chunk| {
        let bits = (0..3).fold(0_usize, |bits, i| bits << 8 | usize::from(chunk.get(i).copied().unwrap_or(0)));
        [18, 12, 6, 0].into_iter().take(chunk.len() + 1).map(move |shift| bits >> shift & 63)
    });
    sextets.map(|sextet| char::from(digits[sextet])).collect()
}

/// Returns the digit that makes a number pass Luhn's check.
fn luhn_digit(text: &str) -> char {
    let digits = text.bytes().filter(u8::is_ascii_digit).rev().map(|digit| u32::from(digit - b'0'));
    let sum: u32 =
        digits.enumerate().map(|(i, digit)| if i % 2 == 0 { digit * 2 / 10 + digit * 2 % 10 } else { digit }).sum();
    char::from_digit((10 - sum % 10) % 10, 10).expect("a digit")
}

/// Replaces the check digits `00` of an IBAN with valid check digits.
fn with_check(iban: &str) -> String {
    let bare: String = iban.chars().filter(char::is_ascii_alphanumeric).collect();
    let turned = bare[4..].chars().chain(bare[..4].chars()).filter_map(|c| c.to_digit(36));
    let rest = turned.fold(0, |rest, n| (if n > 9 { rest * 100 } else { rest * 10 } + n) % 97);
    format!("{}{:02}{}", &iban[..2], 98 - rest, &iban[4..])
}

type Row = (&'static str, &'static str);

const RSA: &str = concat!(
    "-----BEGIN RSA ",
    "PRIVATE KEY-----\n‹s64›\n‹s64›\n‹s64›\n‹s64›\n‹s64›\n‹s64›\n‹s31›=\n-----END RSA ",
    "PRIVATE KEY-----"
);
const EC: &str = concat!("-----BEGIN EC ", "PRIVATE KEY-----\n‹s64›\n‹s64›\n‹s40›==\n-----END EC ", "PRIVATE KEY-----");
const SSH: &str = concat!(
    "-----BEGIN OPENSSH ",
    "PRIVATE KEY-----\n    ‹s70›\n    ‹s70›\n    ‹s70›\n    ‹s40›\n    -----END OPENSSH ",
    "PRIVATE KEY-----"
);
const ESCAPED: &str =
    concat!("-----BEGIN ", "PRIVATE KEY-----\\n‹s64›\\n‹s64›\\n‹s64›\\n‹s64›\\n‹s20›\\n-----END ", "PRIVATE KEY-----");
const LOCKED: &str = concat!(
    "-----BEGIN RSA ",
    "PRIVATE KEY-----\r\nProc-Type: 4,ENCRYPTED\r\nDEK-Info: AES-128-CBC,‹X32›\r\n\r\n‹s64›\r\n‹s64›\r\n‹s64›\r\n-----END RSA ",
    "PRIVATE KEY-----"
);

const PLANTED: &[(&str, &[Row])] = &[
    (
        "private_key",
        &[
            (RSA, "$ cat ~/.ssh/id_rsa\n§\n$ exit\n"),
            (EC, "Merhaba, sunucudaki anahtar şu:\n\n§\n\nLütfen kimseye verme."),
            (SSH, "deploy:\n  host: build-3\n  key: |\n    §\n  port: 22\n"),
            (
                ESCAPED,
                r#"{"type": "service_account", "project_id": "tide-‹d6›", "private_key": "§\n", "client_id": "‹n1›‹d20›"}"#,
            ),
            (LOCKED, "2026-02-11T08:14:02Z WARN tls: file server.key is world-readable, content follows\r\n§\r\n"),
        ],
    ),
    (
        "jwt",
        &[
            (
                r#"‹J{"alg":"HS256","typ":"JWT"}›.‹J{"sub":"u-4711","name":"Ana","iat":1767225600}›.‹b43›"#,
                "fetch('/me', { headers: { 'X-Session': '§' } })",
            ),
            (
                r#"‹J{"alg":"RS256","kid":"2f9c","typ":"JWT"}›.‹J{"iss":"https://login.tide.dev","aud":"api","exp":1799999999,"scope":"read write"}›.‹b342›"#,
                "DEBUG oidc::callback id_token=§ state=ok",
            ),
            (
                r#"‹J{"typ":"JWT","alg":"ES256"}›.‹J{"sub":"42","roles":["admin"]}›.‹b86›"#,
                "Set-Cookie: sid=§; Path=/; HttpOnly; SameSite=Lax",
            ),
            (r#"‹J{"alg":"EdDSA"}›.‹J{"a":1}›.‹b86›"#, "wss://live.tide.dev/feed?jwt=§&v=2"),
        ],
    ),
    (
        "github_token",
        &[
            ("ghp_‹a36›", "git clone https://§@github.com/tide/harbour.git"),
            ("gho_‹a36›", "github.com:\n    user: ana\n    oauth_token: §\n    git_protocol: https\n"),
            ("ghs_‹a36›", "##[debug]Evaluating: github.token => '§'"),
            ("ghr_‹a36›", r#"{"refresh_token":"§","refresh_token_expires_in":15811200}"#),
            ("github_pat_‹a22›_‹a59›", "export GH_TOKEN=§ && gh pr list"),
        ],
    ),
    (
        "gitlab_token",
        &[
            ("glpat-‹b20›", "curl --header \"PRIVATE-TOKEN: §\" https://git.tide.dev/api/v4/projects"),
            ("glrt-‹b20›", "[[runners]]\n  name = \"shared\"\n  token = \"§\"\n  executor = \"docker\"\n"),
            (
                "glptt-‹x40›",
                "curl -X POST -F token=§ -F ref=main https://git.tide.dev/api/v4/projects/7/trigger/pipeline",
            ),
            ("gldt-‹b20›", "docker login -u deploy-3 -p § registry.tide.dev"),
            ("glpat-‹b27›.01.‹l9›", "Caused by: 401 for token § (revoked)"),
        ],
    ),
    (
        "slack_token",
        &[
            ("xoxb-‹n1›‹d11›-‹n1›‹d12›-‹a24›", "SLACK_BOT=§\nSLACK_CHANNEL=C024BE91L\n"),
            ("xoxp-‹n1›‹d11›-‹n1›‹d11›-‹n1›‹d12›-‹x32›", "ana: ich nehm einfach mein § bis der Bot geht"),
            ("xapp-1-A‹U10›-‹n1›‹d12›-‹x64›", "app = App(token=os.environ['T'], app_token='§')"),
            ("https://hooks.slack.com/services/T‹U8›/B‹U10›/‹a24›", "curl -d '{\"text\":\"deployed\"}' §"),
        ],
    ),
    (
        "stripe_key",
        &[
            ("sk_live_‹a24›", "Stripe.api_key = '§'"),
            ("sk_live_51‹a14›‹a83›", "stripe: { publishable: process.env.PK, secret: \"§\" },"),
            ("rk_live_‹a24›", "[error] Invalid API Key provided: § (request req_‹a14›)"),
            ("whsec_‹a32›", "> Ready! Your webhook signing secret is § (^C to quit)"),
        ],
    ),
    (
        "model_key",
        &[
            ("sk-proj-‹b74›T3BlbkFJ‹b74›", "client = OpenAI(api_key=\"§\")"),
            ("sk-‹a20›T3BlbkFJ‹a20›", "openai.error.AuthenticationError: Incorrect API key provided: §."),
            ("sk-ant-api03-‹b93›AA", "curl https://api.anthropic.com/v1/messages -H 'x-api-key: §'"),
            ("hf_‹a34›", "huggingface-cli login --token § --add-to-git-credential"),
            ("gsk_‹a52›", "GROQ=§"),
            ("r8_‹a37›", "replicate = Replicate(api_token='§')"),
            ("xai-‹a80›", "let key = \"§\".to_owned();"),
            ("sk-or-v1-‹x64›", "headers := map[string]string{\"Authorization\": \"Bearer §\"}"),
        ],
    ),
    (
        "google_key",
        &[
            ("AIza‹b35›", "<script src=\"https://maps.googleapis.com/maps/api/js?key=§&callback=init\"></script>"),
            ("AIza‹b35›", "  \"api_key\": [ { \"current_key\": \"§\" } ],"),
            ("ya29.a0‹b160›", "gcloud auth print-access-token\n§\n"),
            (
                "GOCSPX-‹b28›",
                "{\"web\":{\"client_secret\":\"§\",\"auth_uri\":\"https://accounts.google.com/o/oauth2/auth\"}}",
            ),
        ],
    ),
    (
        "aws_key",
        &[
            ("AKIA‹u16›", "[default]\naws_access_key_id = §\nregion = eu-central-1\n"),
            ("ASIA‹u16›", "An error occurred (ExpiredToken) for key §: the token has expired"),
            (
                "AKIA‹u16›",
                "https://tide.s3.amazonaws.com/a.csv?X-Amz-Credential=§%2F20260211%2Feu-central-1%2Fs3%2Faws4_request",
            ),
            ("AKIA‹u16›", "よろしくお願いします。キーは § です。"),
        ],
    ),
    (
        "package_token",
        &[
            ("npm_‹a36›", "//registry.npmjs.org/:_authToken=§\n"),
            ("pypi-AgEIcHlwaS5vcmc‹b150›", "[pypi]\n  username = __token__\n  password = §\n"),
            ("rubygems_‹x48›", "---\n:rubygems_api_key: §\n"),
            ("npm_‹a36›", "npm ERR! 403 token § may not publish tide@2.1.0"),
        ],
    ),
    (
        "mail_key",
        &[
            ("SG.‹b22›.‹b43›", "sgMail.setApiKey('§');"),
            ("key-‹x32›", "curl -s --user 'api:§' https://api.mailgun.net/v3/mg.tide.dev/messages"),
            ("xkeysib-‹x64›-‹a16›", "BREVO: §"),
            ("SG.‹b22›.‹b43›", "spring.sendgrid.api-key=§"),
        ],
    ),
    (
        "azure_key",
        &[
            (
                "‹s86›==",
                "DefaultEndpointsProtocol=https;AccountName=tidestore;AccountKey=§;EndpointSuffix=core.windows.net",
            ),
            (
                "‹s43›=",
                "Endpoint=sb://tide.servicebus.windows.net/;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=§",
            ),
            ("‹s43›=", "HostName=tide.azure-devices.net;DeviceId=pump-3;SharedAccessKey=§\n"),
        ],
    ),
    (
        "url_password",
        &[
            ("‹a20›", "DATABASE_URL=postgres://tide:§@db-1.internal:5432/tide?sslmode=require"),
            ("‹p14›", "pymongo.errors.OperationFailure: mongodb+srv://ana:§@cluster0.mongodb.net/?retryWrites=true"),
            ("‹a12›", "redis://:§@cache:6379/0"),
            ("‹l16›", "remote: origin https://ci-bot:§@git.tide.dev/tide/harbour.git (fetch)"),
            ("‹a18›", "amqp://worker:§@mq.internal/%2f connect failed: refused"),
        ],
    ),
    (
        "assigned",
        &[
            ("‹s40›", "aws_secret_access_key = §"),
            ("‹p16›", "  password: \"§\""),
            ("‹x32›", "const API_KEY = '§';"),
            ("‹a43›", "GET /v1/me HTTP/1.1\r\nHost: api.tide.dev\r\nAuthorization: Bearer §\r\n\r\n"),
            ("‹a32›", "$env:CLIENT_SECRET = \"§\""),
            ("‹x40›", "heroku config:set SECRET_TOKEN=§ -a tide"),
            ("‹b48›", "<add key=\"ApiKey\" value=\"x\" /><add name=\"clientSecret\" secret=\"§\" />"),
            ("‹a24›", "mysql -u root --password=§ tide < dump.sql"),
            ("‹s44›=", "    private static final String JWT_SECRET = \"§\";"),
            ("‹a20›", "{\"level\":\"info\",\"msg\":\"login\",\"db_password\":\"§\",\"user\":\"ana\"}"),
        ],
    ),
    (
        "email",
        &[
            ("ana.souza@correio.com.br", "Oi, manda o contrato para § ainda hoje?"),
            ("j.o'neill+billing@harbour.ie", "From: §\r\nSubject: invoice\r\n"),
            ("tide-ops@lists.harbour.co.uk", "Signed-off-by: Tide Ops <§>"),
            ("m.mueller@tide-werke.de", "ERROR smtp 550 5.1.1 <§> user unknown"),
        ],
    ),
    (
        "iban",
        &[
            ("DE‹I›370400440532‹d6›", "Bitte überweisen Sie 120,00 EUR auf §, Verwendungszweck R-2041."),
            ("FR‹I› 2004 1010 0505 ‹d4› ‹d4› 606", "RIB : §\nBIC : PSSTFRPP\n"),
            ("GB‹I›NWBK601613‹d8›", "{\"iban\":\"§\",\"name\":\"Tide Ltd\"}"),
            ("NL‹I› ABNA ‹d4› ‹d4› ‹d2›", "Graag naar § t.n.v. Tide BV"),
        ],
    ),
    (
        "card",
        &[
            ("4929‹d11›‹L›", "charge card=§ amount=4200 currency=EUR"),
            ("5425 ‹d4› ‹d4› ‹d3›‹L›", "Kundin am Telefon: Karte §, gültig bis 09/28"),
            ("3782-‹d6›-‹d4›‹L›", "pan: \"§\", brand: amex"),
            ("6011‹d11›‹L›", "INSERT INTO cards VALUES (7, '§', '2028-09');"),
        ],
    ),
    (
        "phone",
        &[
            ("+49 89 ‹n1›‹d7›", "Rückfragen an §, Frau Huber."),
            ("(415) 867-‹d4›", "Call me back at § after five."),
            ("+44 20 7946 ‹d4›", "tel:§"),
            ("+55 11 9‹d4›-‹d4›", "WhatsApp: § (Ana)"),
            ("+33 6 12 ‹d2› ‹d2› ‹d2›", "Portable : §"),
        ],
    ),
    (
        "ip",
        &[
            ("84.17.46.‹n1›2", "Failed password for root from § port 51122 ssh2"),
            ("10.32.7.‹n1›4", "kubelet: pod tide-7c9 has address §"),
            ("2a02:8109:9e40:‹x4›:1c2f:8a3b:9d10:7e6f", "§ - - [11/Feb/2026:08:14:02 +0000] \"GET / HTTP/2\" 200 512"),
            ("203.0.113.‹n1›7", "iptables -A INPUT -s § -j DROP"),
            ("2a00:1450:4001:81b::200e", "PING tide.dev (§) 56 data bytes"),
        ],
    ),
];

const LOOK_ALIKES: &[&str] = &[
    // Hashes and ids.
    "commit ‹x40›\nAuthor: Ana\n\n    Fix the tide table\n",
    "HEAD is now at ‹x7› harbour: close the gate",
    "‹x64›  tide-2.1.0.tar.gz",
    "index ‹x7›..‹x7› 100644",
    "checksum = \"‹x64›\"",
    "\"integrity\": \"sha512-‹s86›==\"",
    "resolved \"https://registry.yarnpkg.com/tide/-/tide-2.1.0.tgz#‹x40›\"",
    "github.com/tide/harbour v1.4.2 h1:‹s43›=",
    "    --hash=sha256:‹x64› \\",
    "FROM rust:1.95@sha256:‹x64›",
    "ETag: W/\"‹x32›\"",
    "request_id=‹x8›-‹x4›-4‹x3›-a‹x3›-‹x12› status=200",
    "traceparent: 00-‹x32›-‹x16›-01",
    "md5(‹l12›) = ‹x32›",
    "Docker container ‹x12› exited with code 137",
    "urn:uuid:‹x8›-‹x4›-4‹x3›-9‹x3›-‹x12›",
    "01HX‹U22› is a ULID, as ids go",
    "objectId: ‹x24›",
    "\"etag\": \"‹x32›-12\"",
    "  - name: actions/checkout@‹x40›",
    "nix/store/‹l32›-glibc-2.39",
    "fingerprint SHA256:‹s43› (ED25519)",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI‹s43› ana-laptop",
    "git cherry-pick ‹x40›..‹x40›",
    "Subresource: integrity=\"sha384-‹s64›\" crossorigin=\"anonymous\"",
    // Numbers.
    "ISBN 978-3-16-148410-0",
    "ISBN-10: 0-306-40615-2, 320 pages",
    "ISSN 2049-3630",
    "DOI 10.1145/3624062.3624‹d3›",
    "Bestellung Nr. 4929‹d11›‹W› wurde versandt",
    "order 5425 ‹d4› ‹d4› ‹d3›‹W› is on its way",
    "Tracking: 1Z‹U6›‹d10›",
    "EAN 4006381333931",
    "invoice R-2026-0‹d5›, customer 10‹d5›",
    "1767225600 1767225601 1767225602",
    "took 1767225600123456789 ns since the epoch",
    "epoch_ms=1767225600‹d3›",
    "48.137154, 11.576124",
    "POINT(-122.4194155 37.7749295)",
    "lat=-33.8567844&lon=151.2152967&zoom=14",
    "3.14159265358979323846264338327950288",
    "Total: 1,234,567.89 EUR (+4.20 %)",
    "0x7fff5fbff8a0 0x00007f9c2d4e1b30",
    "rows 100000-200000 of 999999",
    "Aktenzeichen 12 O 345/26, Blatt 4711",
    "UPC 036000291452, qty 12",
    "2026-02-11 08:14:02.123456+01:00",
    "20260211T081402Z",
    "ISO 8601-1:2019, RFC 9110, IEEE 802.11ax",
    "Flight LH 2041, seat 14C, PNR ‹u6›",
    "pid 48213 tid 140237812934400",
    "chr7:55019017-55211628",
    "score 12-3 10-4 11-9",
    // Versions, and texts that look like addresses.
    "tide 2.1.0.4 (build 26100.1742)",
    "Chrome/126.0.6478.127 Safari/537.36",
    "version=\"10.0.19045.4529\"",
    "listening on 127.0.0.1:8080 and [::1]:8080",
    "bind 0.0.0.0:443",
    "std::collections::hash_map::Entry::Vacant",
    "Foo::Bar::BAZ::qux",
    "08:14:02:123 tick",
    "a::b::c, ratio 16:9, verse 3:16",
    "MAC 02:42:ac:11:00:02",
    "AssemblyVersion(\"4.0.0.0\")",
    "section 1.2.3.4 of the manual",
    "OID 1.3.6.1.4.1.311.21.20",
    // Texts with an at sign or a scheme.
    "npm install @types/node@20.14.9 left-pad@1.3.0",
    "<img src=\"logo@2x.png\" srcset=\"logo@3x.png 3x\">",
    "@Override public void run() {}",
    "ana@laptop:~/tide$ make",
    "git@github.com:tide/harbour.git",
    "rsync -a build/ deploy@web-1:/srv/tide",
    "https://tide.dev/@ana/posts/42",
    "https://tide.dev:8443/a?b=c#d",
    "postgres://db-1.internal:5432/tide",
    "postgres://tide:${DB_PASSWORD}@db-1.internal/tide",
    "redis://:<password>@cache:6379",
    // Placeholders and examples.
    "API_KEY=your-api-key-here",
    "api_key = \"<YOUR_API_KEY>\"",
    "password: ${DB_PASSWORD}",
    "token: {{ secrets.GITHUB_TOKEN }}",
    "password=********",
    "PASSWORD=changeme",
    "secret: xxxxxxxxxxxxxxxxxxxxxxxx",
    "export GH_TOKEN=ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "Stripe keys begin with sk_live_ or sk_test_, like sk_live_...",
    "Authorization: Bearer $TOKEN",
    "Authorization: Bearer <token>",
    "aws_access_key_id = AKIAIOSFODNN7EXAMPLE",
    "client_secret: [REDACTED]",
    "const token = await getAccessToken(user);",
    "let password = prompt_for_password()?;",
    "if (apiKey === undefined) throw new Error('apiKey is missing');",
    "password_reset_token_expires_in_minutes: 30",
    "max_tokens=4096 temperature=0.7",
    "tokens: 183, prompt_tokens: 120, completion_tokens: 63",
    "secret_name: tide-database-credentials",
    "api_key: !Ref TideApiKeyParameter",
    "token = os.environ[\"TIDE_SERVICE_TOKEN\"]",
    "TOKEN_URL=https://login.tide.dev/oauth2/token",
    "password must have 12 characters, a digit and a symbol",
    "secretKeyRef: { name: tide-secrets, key: database-password }",
    "sk-learn is imported as sklearn; hf_hub_download(repo_id='tide/base')",
    // Encoded data that contains no secret.
    "data:image/png;base64,iVBORw0KGgo‹s400›==",
    "background: url(data:font/woff2;base64,d09GMgABAAAAA‹s300›)",
    "-----BEGIN CERTIFICATE-----\nMII‹s61›\n‹s64›\n‹s64›\n‹s20›==\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\nMFkw‹s60›\n‹s60›==\n-----END PUBLIC KEY-----",
    "{\"alg\":\"HS256\",\"typ\":\"JWT\"} is ‹J{\"alg\":\"HS256\",\"typ\":\"JWT\"}› in base64",
    "cursor=‹J{\"after\":1767225600,\"page\":3}›",
    "Content-Security-Policy: script-src 'nonce-‹s22›=='",
    "boundary=----WebKitFormBoundary‹a16›",
    "https://www.youtube.com/watch?v=‹b11›",
    "https://docs.google.com/document/d/1‹b43›/edit",
    "main.‹x8›.chunk.js 142 kB",
    "eth0: 0x‹x40› sent 0.2 ETH",
    "AAAA BBBB CCCC DDDD EEEE FFFF",
    "pk_live_‹a24› is public, and may stand in a page",
];
