//! What people read at a rule.

use std::sync::Arc;

/// The longest that the match of before takes: `XT_MAX_COMMENT_LEN` without the zero behind it.
const LONGEST: usize = 255;

/// `text` as a comment. Names come from the API server, which takes letters, digits, `-` and `.`, but
/// from manifests, too: what `iptables-save` would not print in a way that `iptables-restore` reads is
/// a question mark, and what is too long is cut off. Chains are told apart by the whole of a name
/// whatever it has ([`names`](crate::names)).
pub(crate) fn of(text: &str) -> Arc<str> {
    let is_plain = |c: char| matches!(c, ' '..='~') && !matches!(c, '"' | '\'' | '\\' | '`');
    if text.len() <= LONGEST && text.chars().all(is_plain) {
        return text.into();
    }
    let plain = text.chars().map(|c| if is_plain(c) { c } else { '?' });
    plain.take(LONGEST).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_every_iptables_prints_and_reads_reaches_a_comment() {
        assert_eq!(&*of("shop/web:http cluster IP"), "shop/web:http cluster IP");
        assert_eq!(&*of("a\nCOMMIT\t\0\"'\\`/ü"), "a?COMMIT??????/?");
        assert_eq!(of(&"long".repeat(1_000_000)).len(), LONGEST);
        assert_eq!(of(&"ü".repeat(255)).len(), LONGEST);
    }
}
