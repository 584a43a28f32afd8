//! Removes texts that look like credentials. Objects that hold credentials are not read in the
//! first place. Pure.

/// The replacement for a credential.
const REMOVED: &str = "[removed]";
/// The prefix of a JSON Web Token's header and payload: `{"` in Base64.
const JSON: &str = "eyJ";
const BEARER: &str = "bearer ";
/// A shorter text after `bearer` is an ordinary word.
const SHORTEST: usize = 8;
const KEY_BEGINS: &str = "-----BEGIN ";
const KEY_ENDS: &str = "PRIVATE KEY-----";

/// Returns `text` without service account tokens, bearer tokens and private keys.
pub(super) fn without_secrets(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut in_key = false;
    for line in text.split_inclusive('\n') {
        let begins = line.contains(KEY_BEGINS) && line.contains(KEY_ENDS);
        if begins {
            kept.push_str(REMOVED);
            kept.push('\n');
        }
        in_key |= begins;
        if !in_key {
            kept.push_str(&without_tokens(line));
        }
        // The key may end on the same line or several lines later.
        if in_key && line.contains("-----END ") {
            in_key = false;
        }
    }
    kept
}

fn without_tokens(line: &str) -> String {
    let mut kept = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(is_of_token) {
        let (before, from) = rest.split_at(start);
        kept.push_str(before);
        let borne = follows_bearer(&kept);
        let end = match borne {
            true => from.find(|letter: char| letter.is_whitespace() || "\"',;)".contains(letter)),
            false => from.find(|letter| !is_of_token(letter)),
        };
        let (word, after) = from.split_at(end.unwrap_or(from.len()));
        let is_secret = is_token(word) || (borne && word.len() >= SHORTEST);
        kept.push_str(if is_secret { REMOVED } else { word });
        rest = after;
    }
    kept + rest
}

/// Whether `letter` may occur in a JSON Web Token.
fn is_of_token(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "-_.".contains(letter)
}

/// Whether `word` is a JSON Web Token: header, payload and signature.
fn is_token(word: &str) -> bool {
    let mut parts = word.split('.');
    let encoded = |part: Option<&str>| part.is_some_and(|part| part.starts_with(JSON));
    encoded(parts.next()) && encoded(parts.next())
}

fn follows_bearer(text: &str) -> bool {
    let end = text.len().checked_sub(BEARER.len());
    let tail = end.and_then(|end| text.get(end..));
    tail.is_some_and(|tail| tail.eq_ignore_ascii_case(BEARER))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJl-_x";

    #[test]
    fn credentials_are_taken_out_and_everything_else_stays() {
        for (text, expected) in [
            (
                format!("token={TOKEN}, next\n"),
                "token=[removed], next\n".to_owned(),
            ),
            (
                "Authorization: Bearer abc.def+1== end".to_owned(),
                "Authorization: Bearer [removed] end".to_owned(),
            ),
            (
                "a: |\n  -----BEGIN EC PRIVATE KEY-----\n  MHc\n  -----END EC PRIVATE KEY-----\nb: 1\n"
                    .to_owned(),
                "a: |\n[removed]\nb: 1\n".to_owned(),
            ),
            (
                "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n".to_owned(),
                "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n".to_owned(),
            ),
            (
                "Service eyJ.shop/web at 10.96.0.10:80, a bearer of load".to_owned(),
                "Service eyJ.shop/web at 10.96.0.10:80, a bearer of load".to_owned(),
            ),
        ] {
            assert_eq!(without_secrets(&text), expected);
        }
    }

    proptest! {
        #[test]
        fn a_token_is_found_wherever_it_stands(
            before in r#"[ :,(a-z\n]{0,20}[ "':,(=]"#,
            after in r#"[ "',)]\PC{0,20}"#,
        ) {
            let text = format!("{before}{TOKEN}{after}");
            prop_assert!(!without_secrets(&text).contains(TOKEN));
        }

        #[test]
        fn any_text_is_taken(text in r"\PC*") {
            without_secrets(&text);
        }
    }
}
