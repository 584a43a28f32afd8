//! The comments of rules.

use std::sync::Arc;

/// The longest comment that the match accepts: `XT_MAX_COMMENT_LEN` without the terminating zero.
const LONGEST: usize = 255;

/// Returns `text` as a comment. Names from the API server consist of letters, digits, `-` and `.`,
/// but names from manifests may not: characters that `iptables-save` would not print as
/// `iptables-restore` reads them become question marks, and text that is too long is cut off. Chain
/// names depend on the whole of a name in any case ([`names`](crate::names)).
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
